// disk.cpp: reads of rows of a file as seen from Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>

#include "bindings/numpy.h"
#include "disk/read_rows.h"

namespace datapipes {
namespace {

template <class Id>
void bind_disk_for(py::module_& m) {
  m.def(
      "read_rows",
      [](int descriptor, const Array<Id>& ids, std::int64_t begin, std::int64_t num_rows, std::int64_t row_bytes,
         std::int64_t block, bool direct, int depth, std::optional<py::array_t<std::uint8_t>> out) -> py::tuple {
        const auto wanted = view(ids, "ids");
        const auto num_ids = std::ssize(wanted);
        if (begin < 0 || num_rows < 0 || row_bytes < 0 || block < 1 || (block & (block - 1)) != 0 || depth < 1 || depth > 4096)
          throw std::invalid_argument(
              "read_rows: begin, num_rows and row_bytes must be 0 or more, block a power of 2, depth in [1, 4096].");
        if (row_bytes > 0 && (num_ids > INT64_MAX / row_bytes || num_rows > (INT64_MAX - begin) / row_bytes))
          throw std::bad_alloc();
        if (out && (out->ndim() != 2 || out->shape(0) != num_ids || out->shape(1) != row_bytes ||
                    (out->flags() & py::array::c_style) == 0))
          throw std::invalid_argument("read_rows: out must be contiguous, " + std::to_string(num_ids) + " rows of " +
                                      std::to_string(row_bytes) + " bytes.");
        Buffer<std::uint8_t> fresh;
        std::byte* to = nullptr;
        if (out) {
          to = reinterpret_cast<std::byte*>(out->mutable_data());  // throws if it is read-only
        } else {
          fresh = Buffer<std::uint8_t>(num_ids * row_bytes);
          to = reinterpret_cast<std::byte*>(fresh.data());
        }
        const RowFile file{descriptor, begin, num_rows, row_bytes, block, direct};
        ReadCounts counts;
        try {
          counts = without_gil([&] { return read_rows(file, wanted, to, depth); });
        } catch (const std::system_error& failed) {  // pybind11 would make a RuntimeError of it
          errno = failed.code().value();
          PyErr_SetFromErrno(PyExc_OSError);
          throw py::error_already_set();
        }
        py::array rows = out ? py::array(*out) : to_numpy(std::move(fresh)).reshape({num_ids, row_bytes});
        return py::make_tuple(rows, counts.reads, counts.bytes_read);
      },
      py::arg("descriptor"), py::arg("ids").noconvert(), py::kw_only(), py::arg("begin"), py::arg("num_rows"),
      py::arg("row_bytes"), py::arg("block"), py::arg("direct"), py::arg("depth"), py::arg("out").noconvert() = py::none());
}

}  // namespace

void bind_disk(py::module_& m) {
  bind_disk_for<std::int32_t>(m);
  bind_disk_for<std::int64_t>(m);
}

}  // namespace datapipes
