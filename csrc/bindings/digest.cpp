// digest.cpp: names, shapes and ownership of the hashes of arrays.
#include <pybind11/pybind11.h>

#include <span>

#include "bindings/numpy.h"
#include "digest/piece_hashes.h"

namespace datapipes {
namespace {

template <class T, class Hashes>
py::array_t<std::uint64_t> hashes_of(const Array<T>& values, int num_threads, const Hashes& hashes) {
  check_threads(num_threads);
  const auto given = view(values, "values");
  return to_numpy(without_gil([&] { return hashes(given); }));
}

}  // namespace

void bind_digest(py::module_& m) {
  m.def(
      "piece_hashes",
      [](const Array<std::uint8_t>& values, std::int64_t piece_bytes, int num_threads) {
        return hashes_of(values, num_threads,
                         [&](auto given) { return piece_hashes(std::as_bytes(given), piece_bytes, num_threads); });
      },
      py::arg("values").noconvert(), py::arg("piece_bytes"), py::kw_only(), py::arg("num_threads") = 1);
  m.def(
      "widened_piece_hashes",
      [](const Array<std::int32_t>& values, std::int64_t piece_values, int num_threads) {
        return hashes_of(values, num_threads, [&](auto given) { return widened_piece_hashes(given, piece_values, num_threads); });
      },
      py::arg("values").noconvert(), py::arg("piece_values"), py::kw_only(), py::arg("num_threads") = 1);
}

}  // namespace datapipes
