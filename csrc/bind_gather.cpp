// bind_gather.cpp: names, shapes and ownership of the row gather.
#include <pybind11/pybind11.h>

#include "gather/gather_rows.h"
#include "numpy.h"

namespace datapipes {
namespace {

using Bytes = py::array_t<std::uint8_t>;

RowTable row_table(const Bytes& table) {
  if (table.ndim() != 2)
    throw std::invalid_argument("table must have 2 dimensions (rows, bytes), got " + std::to_string(table.ndim()) + ".");
  const bool empty = table.shape(0) == 0 || table.shape(1) == 0;  // NumPy gives these arrays strides of 0
  if (!empty && table.shape(1) > 1 && table.strides(1) != 1) throw std::invalid_argument("the bytes of a row must be adjacent.");
  if (table.shape(0) > 1 && table.strides(0) < 0) throw std::invalid_argument("rows must ascend in memory.");
  return {reinterpret_cast<const std::byte*>(table.data()), table.shape(0), table.shape(1), table.strides(0)};
}

template <class Id>
void bind_for(py::module_& m) {
  m.def(
      "gather_rows",
      [](const Bytes& table, const Array<Id>& ids) {
        const RowTable rows = row_table(table);
        const auto wanted = view(ids, "ids");
        const auto num_ids = std::ssize(wanted);
        if (rows.row_bytes > 0 && num_ids > INT64_MAX / rows.row_bytes) throw std::bad_alloc();
        Buffer<std::uint8_t> out(num_ids * rows.row_bytes);
        {
          py::gil_scoped_release nogil;
          gather_rows(rows, wanted, reinterpret_cast<std::byte*>(out.data()));
        }
        return to_numpy(std::move(out)).reshape({num_ids, rows.row_bytes});
      },
      py::arg("table").noconvert(), py::arg("ids").noconvert());
}

}  // namespace

void bind_gather(py::module_& m) {
  bind_for<std::int32_t>(m);
  bind_for<std::int64_t>(m);
}

}  // namespace datapipes
