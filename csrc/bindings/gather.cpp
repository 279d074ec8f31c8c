// gather.cpp: names, shapes and ownership of the row gathers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>

#include "bindings/numpy.h"
#include "gather/gather_decoded.h"
#include "gather/gather_rows.h"

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

// The bytes from the first byte of the first row to the last byte of the last row.
std::int64_t bytes_of(const RowTable& rows) {
  return rows.num_rows > 0 ? (rows.num_rows - 1) * rows.row_stride + rows.row_bytes : 0;
}

bool overlap(const std::byte* one, std::int64_t one_bytes, const std::byte* other, std::int64_t other_bytes) {
  return one < other + other_bytes && other < one + one_bytes;
}

// Returns the caller's memory for the rows. Throws unless it has room for exactly these rows, is contiguous and writable, and
// overlaps neither the table nor the ids, which are read while it is written.
std::byte* given_rows(const char* op, Bytes& out, const RowTable& rows, std::int64_t out_bytes, std::int64_t num_ids,
                      const void* ids, std::int64_t ids_bytes) {
  if (out.ndim() != 2 || out.shape(0) != num_ids || out.shape(1) != out_bytes || (out.flags() & py::array::c_style) == 0) {
    throw std::invalid_argument(std::string(op) + ": out must be contiguous, " + std::to_string(num_ids) + " rows of " +
                                std::to_string(out_bytes) + " bytes. Allocate it for these ids.");
  }
  auto* const to = reinterpret_cast<std::byte*>(out.mutable_data());  // throws if it is read-only
  const bool with_table = overlap(to, out.size(), rows.data, bytes_of(rows));
  if (out.size() > 0 && (with_table || overlap(to, out.size(), static_cast<const std::byte*>(ids), ids_bytes))) {
    throw std::invalid_argument(std::string(op) + ": out overlaps the " + (with_table ? "rows" : "ids") +
                                ", which are read while it is written. Give it memory of its own.");
  }
  return to;
}

// Calls gather(to) without the GIL; `to` has room for `num_ids` rows of `out_bytes` bytes, in `out` or in new memory.
template <class Id, class Gather>
py::array into_rows(const char* op, std::optional<Bytes>& out, const RowTable& rows, std::int64_t out_bytes,
                    std::span<const Id> ids, Gather&& gather) {
  const auto num_ids = std::ssize(ids);
  if (out_bytes > 0 && num_ids > INT64_MAX / out_bytes) throw std::bad_alloc();
  Buffer<std::uint8_t> fresh;
  std::byte* to = nullptr;
  if (out) {
    to = given_rows(op, *out, rows, out_bytes, num_ids, ids.data(), static_cast<std::int64_t>(ids.size_bytes()));
  } else {
    fresh = Buffer<std::uint8_t>(num_ids * out_bytes);
    to = reinterpret_cast<std::byte*>(fresh.data());
  }
  without_gil([&] { gather(to); });
  if (out) return *out;
  return to_numpy(std::move(fresh)).reshape({num_ids, out_bytes});
}

template <class Id>
void bind_gather_for(py::module_& m) {
  m.def(
      "gather_rows",
      [](const Bytes& table, const Array<Id>& ids, std::optional<Bytes> out, int num_threads) -> py::array {
        const RowTable rows = row_table(table);
        const auto wanted = view(ids, "ids");
        check_threads(num_threads);
        return into_rows("gather_rows", out, rows, rows.row_bytes, wanted,
                         [&](std::byte* to) { gather_rows(rows, wanted, to, num_threads); });
      },
      py::arg("table").noconvert(), py::arg("ids").noconvert(), py::kw_only(), py::arg("out").noconvert() = py::none(),
      py::arg("num_threads") = 1);
}

Stored stored_of(const std::string& name) {
  if (name == "float16") return Stored::kFloat16;
  if (name == "bfloat16") return Stored::kBfloat16;
  if (name == "int8") return Stored::kInt8;
  throw std::invalid_argument("gather_decoded: stored_as must be float16, bfloat16 or int8, got " + name + ".");
}

template <class Id>
void bind_gather_decoded_for(py::module_& m) {
  m.def(
      "gather_decoded",
      [](const Bytes& table, const Array<Id>& ids, const std::string& stored_as, const std::optional<Array<float>>& scale,
         std::optional<Bytes> out, int num_threads) -> py::array {
        const RowTable rows = row_table(table);
        const auto wanted = view(ids, "ids");
        check_threads(num_threads);
        const Stored stored = stored_of(stored_as);
        const std::int64_t width = rows.row_bytes / stored_bytes(stored);
        if (rows.row_bytes % stored_bytes(stored) != 0)
          throw std::invalid_argument("gather_decoded: rows of " + std::to_string(rows.row_bytes) +
                                      " bytes hold no whole values.");
        if (width > INT64_MAX / 4) throw std::bad_alloc();
        const auto scales = view(scale, "scale");
        if (std::ssize(scales) != (stored == Stored::kInt8 ? width : 0))
          throw std::invalid_argument("gather_decoded: int8 needs a scale for each of " + std::to_string(width) +
                                      " columns, the others none; got " + std::to_string(scales.size()) + ".");
        if (out && out->size() > 0 &&
            overlap(reinterpret_cast<const std::byte*>(out->data()), out->size(),
                    reinterpret_cast<const std::byte*>(scales.data()), static_cast<std::int64_t>(scales.size_bytes())))
          throw std::invalid_argument(
              "gather_decoded: out overlaps the scale, which is read while it is written. Give it "
              "memory of its own.");
        return into_rows("gather_decoded", out, rows, 4 * width, wanted,
                         [&](std::byte* to) { gather_decoded(rows, stored, scales.data(), wanted, to, num_threads); });
      },
      py::arg("table").noconvert(), py::arg("ids").noconvert(), py::kw_only(), py::arg("stored_as"),
      py::arg("scale").noconvert() = py::none(), py::arg("out").noconvert() = py::none(), py::arg("num_threads") = 1);
}

// The memory that place_rows writes to: any number of rows as wide as the table's.
std::byte* rows_to_fill(Bytes& out, const RowTable& rows) {
  if (out.ndim() != 2 || out.shape(1) != rows.row_bytes || (out.flags() & py::array::c_style) == 0)
    throw std::invalid_argument("place_rows: out must be contiguous, rows of " + std::to_string(rows.row_bytes) + " bytes.");
  auto* const to = reinterpret_cast<std::byte*>(out.mutable_data());  // throws if it is read-only
  if (out.size() > 0 && overlap(to, out.size(), rows.data, bytes_of(rows)))
    throw std::invalid_argument("place_rows: out overlaps the rows. Give it memory of its own.");
  return to;
}

template <class Id>
void bind_place_for(py::module_& m) {
  m.def(
      "place_rows",
      [](const Bytes& table, const std::optional<Array<Id>>& rows, const Array<std::int64_t>& places, Bytes& out,
         int num_threads) {
        const RowTable from = row_table(table);
        const auto to = view(places, "places");
        check_threads(num_threads);
        std::byte* const memory = rows_to_fill(out, from);
        const std::int64_t num_out = out.shape(0);
        if (!rows) {
          const GilRelease nogil;
          return place_rows(from, to, memory, num_out, num_threads);
        }
        const auto wanted = view(*rows, "rows");
        const GilRelease nogil;
        place_rows(from, wanted, to, memory, num_out, num_threads);
      },
      py::arg("table").noconvert(), py::arg("rows").noconvert(), py::arg("places").noconvert(), py::kw_only(),
      py::arg("out").noconvert(), py::arg("num_threads") = 1);
}

}  // namespace

void bind_gather(py::module_& m) {
  bind_gather_for<std::int32_t>(m);
  bind_gather_for<std::int64_t>(m);
  bind_gather_decoded_for<std::int32_t>(m);
  bind_gather_decoded_for<std::int64_t>(m);
  bind_place_for<std::int32_t>(m);
  bind_place_for<std::int64_t>(m);
  m.def(
      "new_rows",
      [](std::int64_t num_rows, std::int64_t row_bytes) -> py::array {
        if (num_rows < 0 || row_bytes < 0) throw std::invalid_argument("new_rows: sizes must be 0 or more.");
        if (row_bytes > 0 && num_rows > INT64_MAX / row_bytes) throw std::bad_alloc();
        return to_numpy(Buffer<std::uint8_t>(num_rows * row_bytes)).reshape({num_rows, row_bytes});
      },
      py::arg("num_rows"), py::arg("row_bytes"));
}

}  // namespace datapipes
