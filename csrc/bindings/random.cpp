// random.cpp: names, shapes and ownership of the random kernels.
#include <pybind11/pybind11.h>

#include "bindings/numpy.h"
#include "random/permutation.h"
#include "random/philox.h"

namespace datapipes {

void bind_random(py::module_& m) {
  m.attr("STREAM_VERSION") = kStreamVersion;
  m.def(
      "philox4x32",
      [](std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint64_t key) {
        const Words words = philox4x32({c0, c1, c2, c3}, key);
        return py::make_tuple(words[0], words[1], words[2], words[3]);
      },
      py::arg("c0"), py::arg("c1"), py::arg("c2"), py::arg("c3"), py::arg("key"));
  m.def("hop_key", &hop_key, py::arg("seed"), py::arg("epoch"), py::arg("batch"), py::arg("stage"), py::arg("hop"),
        py::arg("etype"));
  m.def(
      "bounded_draws",
      [](std::uint64_t key, std::uint64_t node, std::uint32_t stream, const Array<std::int64_t>& ranges) {
        const auto wanted = view(ranges, "ranges");
        Buffer<std::int64_t> drawn(std::ssize(wanted));
        Stream words(key, node, stream);
        for (std::int64_t i = 0; i < std::ssize(wanted); ++i) {
          if (wanted[static_cast<std::size_t>(i)] < 1) throw std::invalid_argument("bounded_draws: a range must be 1 or more.");
          drawn[i] = static_cast<std::int64_t>(words.bounded(static_cast<std::uint64_t>(wanted[static_cast<std::size_t>(i)])));
        }
        return to_numpy(std::move(drawn));
      },
      py::arg("key"), py::arg("node"), py::arg("stream"), py::arg("ranges").noconvert());
  m.def(
      "permutation_at",
      [](std::int64_t num_items, std::uint64_t key, std::int64_t first, std::int64_t count) {
        if (count < 0) throw std::invalid_argument("permutation: count must be 0 or more, got " + std::to_string(count) + ".");
        Buffer<std::int64_t> out(count);
        without_gil([&] { permutation_at(num_items, key, first, {out.data(), static_cast<std::size_t>(count)}); });
        return to_numpy(std::move(out));
      },
      py::arg("num_items"), py::arg("key"), py::arg("first"), py::arg("count"));
}

}  // namespace datapipes
