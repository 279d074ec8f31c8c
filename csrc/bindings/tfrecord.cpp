// tfrecord.cpp: TFRecords for Python: bytes of any object with a buffer, targets as arrays, problems as text.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/numpy.h"
#include "tfrecord/crc32c.h"
#include "tfrecord/example.h"
#include "tfrecord/framing.h"

namespace datapipes {
namespace {

using tfrecord::Column;
using tfrecord::DType;
using tfrecord::ExampleParser;
using tfrecord::Extent;
using tfrecord::Kind;
using tfrecord::Target;

// The bytes of a contiguous buffer, which cannot be resized or freed meanwhile.
class HeldBytes {
 public:
  explicit HeldBytes(const py::object& owner) {
    if (PyObject_GetBuffer(owner.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes() { PyBuffer_Release(&view_); }
  tfrecord::Bytes bytes() const { return {static_cast<const std::uint8_t*>(view_.buf), static_cast<std::size_t>(view_.len)}; }

 private:
  Py_buffer view_;
};

// Keys in a problem need not be UTF-8.
py::str text_of(const std::string& text) {
  PyObject* const decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::tuple tuple_of(const Extent& extent) { return py::make_tuple(extent.records, extent.bytes, text_of(extent.problem)); }

// Returns one or several numbers as T; throws pybind11's cast error if a value is no number or too large.
template <class T>
std::vector<T> default_of(const py::object& given, std::int64_t width) {
  if (!py::isinstance<py::iterable>(given)) return std::vector<T>(static_cast<std::size_t>(width), given.cast<T>());
  std::vector<T> values;
  for (const py::handle each : given) values.push_back(each.cast<T>());
  return values;
}

Column column_of(std::size_t number, const std::string& key, const std::string& kind, std::int64_t width,
                 const py::object& given) {
  const std::string where = "ExampleParser: column " + std::to_string(number);
  if (kind != "int64" && kind != "float32") throw py::value_error(where + " must be 'int64' or 'float32', got '" + kind + "'.");
  Column column{.key = key, .kind = kind == "int64" ? Kind::kInt64 : Kind::kFloat32, .width = width};
  column.has_default = !given.is_none();
  if (!column.has_default || width < 1) return column;
  try {
    if (column.kind == Kind::kInt64) {
      column.default_ints = default_of<std::int64_t>(given, width);
    } else {
      for (const double value : default_of<double>(given, width)) {
        const auto narrow = static_cast<float>(value);
        if (std::isinf(narrow) && !std::isinf(value)) throw py::cast_error();
        column.default_floats.push_back(narrow);
      }
    }
  } catch (const py::cast_error&) {
    throw py::type_error(where + " has default values " + py::repr(given).cast<std::string>() + ", must be " + kind + ".");
  }
  return column;
}

DType dtype_of(const py::array& array, const std::string& where) {
  const auto dtype = array.dtype();
  const auto native = dtype.byteorder() == '=' || dtype.byteorder() == '|';
  const std::string name = std::string(1, dtype.kind()) + std::to_string(dtype.itemsize());
  constexpr std::pair<const char*, DType> kKnown[] = {{"f2", DType::kFloat16}, {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
                                                      {"i1", DType::kInt8},    {"i2", DType::kInt16},   {"i4", DType::kInt32},
                                                      {"i8", DType::kInt64},   {"u1", DType::kUInt8},   {"u2", DType::kUInt16},
                                                      {"u4", DType::kUInt32},  {"u8", DType::kUInt64}};
  for (const auto& [known, as] : kKnown)
    if (native && name == known) return as;
  throw py::type_error(where + " has dtype " + py::str(dtype).cast<std::string>() +
                       ", must be float16, float32, float64, or an integer.");
}

Target target_of(py::array& array, const Column& column, std::size_t number) {
  const std::string where = "ExampleParser.parse: target " + std::to_string(number);
  const auto dtype = dtype_of(array, where);
  if (array.ndim() != 2 || array.shape(1) != column.width) {
    throw py::value_error(where + " has shape " + py::str(array.attr("shape")).cast<std::string>() + ", must be (rows, " +
                          std::to_string(column.width) + ").");
  }
  if (column.width > 1 && array.shape(0) > 0 && array.strides(1) != array.itemsize()) {
    throw py::value_error(where + " has values of a row that are not adjacent in memory.");
  }
  auto* const data = static_cast<std::byte*>(array.mutable_data());  // throws if it is read-only
  return {data, array.shape(0), array.strides(0), dtype};
}

py::tuple parse(const ExampleParser& parser, const py::object& data, std::vector<py::array> arrays, std::int64_t first_row) {
  const auto& columns = parser.columns();
  std::vector<Target> targets;
  if (arrays.size() != columns.size()) {
    throw py::value_error("ExampleParser.parse: " + std::to_string(arrays.size()) + " targets for " +
                          std::to_string(columns.size()) + " columns. Pass one for each.");
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) targets.push_back(target_of(arrays[i], columns[i], i));
  const HeldBytes held(data);
  return tuple_of(without_gil([&] { return parser.parse(held.bytes(), targets, first_row); }));
}

}  // namespace

void bind_tfrecord(py::module_& m) {
  m.def(
      "crc32c",
      [](const py::object& data, std::uint32_t crc) {
        const HeldBytes held(data);
        const GilRelease nogil;
        return tfrecord::crc32c(held.bytes(), crc);
      },
      py::arg("data"), py::arg("crc") = 0);
  m.def(
      "record_length",
      [](const py::object& data) {
        const HeldBytes held(data);
        try {
          const auto length = tfrecord::record_length(held.bytes());
          return length == 0 ? std::int64_t{-1} : static_cast<std::int64_t>(length);
        } catch (const tfrecord::Problem& problem) {
          throw py::value_error(problem.what());
        }
      },
      py::arg("data"));
  m.def(
      "scan_records",
      [](const py::object& data, bool check_data) {
        const HeldBytes held(data);
        return tuple_of(without_gil([&] { return tfrecord::scan_records(held.bytes(), check_data); }));
      },
      py::arg("data"), py::arg("check_data"));
  py::class_<ExampleParser>(m, "ExampleParser")
      .def(py::init([](const std::vector<std::tuple<py::bytes, std::string, std::int64_t, py::object>>& given) {
             std::vector<Column> columns;
             for (const auto& [key, kind, width, value] : given)
               columns.push_back(column_of(columns.size(), key, kind, width, value));
             return std::make_unique<ExampleParser>(std::move(columns));
           }),
           py::arg("columns"))
      .def("parse", &parse, py::arg("data"), py::arg("targets"), py::arg("first_row"));
}

}  // namespace datapipes
