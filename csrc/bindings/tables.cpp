// tables.cpp: IdNumbers as seen from Python. A column is (offsets, bytes, valid) for texts, (integers, valid) for integers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/numpy.h"
#include "tables/id_numbers.h"

namespace datapipes {
namespace {

// Python threads may share it: `number` runs without the GIL.
class SharedIdNumbers {
 public:
  using Out = py::array_t<std::int64_t>;

  SharedIdNumbers(const std::string& kind, std::uint64_t seed) : numbers_(kind_of(kind), seed) {}

  std::int64_t count() const {
    const GilRelease nogil;
    const std::scoped_lock lock(mutex_);
    return numbers_.count();
  }

  Out number(const py::list& columns, bool add) {
    const bool has_texts = numbers_.kind() == IdNumbers::Kind::kTexts;
    std::vector<py::tuple> held;
    std::vector<IdColumn> viewed;
    for (const py::handle column : columns) {
      held.push_back(py::cast<py::tuple>(column));
      if (held.back().size() != (has_texts ? 3 : 2)) throw std::invalid_argument("id_numbers: a column of another kind.");
      viewed.push_back(viewed_of(held.back(), has_texts));
    }
    if (viewed.empty()) throw std::invalid_argument("id_numbers: no columns.");
    const std::int64_t rows = std::ssize(has_texts ? viewed[0].offsets : viewed[0].integers) - (has_texts ? 1 : 0);
    if (rows < 0) throw std::invalid_argument("id_numbers: offsets must have an entry more than rows.");
    Buffer<std::int64_t> out(std::ssize(viewed) * rows);
    {
      const GilRelease nogil;
      const std::scoped_lock lock(mutex_);
      const std::span<std::int64_t> places(out.data(), static_cast<std::size_t>(out.size()));
      add ? numbers_.number(viewed, rows, places) : numbers_.find(viewed, rows, places);
    }
    return to_numpy(std::move(out)).reshape({static_cast<py::ssize_t>(viewed.size()), static_cast<py::ssize_t>(rows)});
  }

  // The ids with numbers [begin, end), as one column of `number`, without `valid`.
  py::tuple ids(std::int64_t begin, std::int64_t end) const {
    Buffer<std::int64_t> integers;  // or the offsets of texts
    Buffer<std::uint8_t> bytes;
    const bool has_texts = numbers_.kind() == IdNumbers::Kind::kTexts;
    {
      const GilRelease nogil;
      const std::scoped_lock lock(mutex_);
      if (begin < 0 || end < begin || end > numbers_.count()) throw std::out_of_range("id_numbers: no such numbers.");
      integers = Buffer<std::int64_t>(end - begin + (has_texts ? 1 : 0));
      if (has_texts) integers[0] = 0;
      for (std::int64_t number = begin; number < end; ++number) {
        if (has_texts)
          integers[number - begin + 1] = integers[number - begin] + std::ssize(numbers_.text(number));
        else
          integers[number - begin] = numbers_.integer(number);
      }
      if (has_texts) bytes = Buffer<std::uint8_t>(integers[end - begin]);
      for (std::int64_t number = begin; has_texts && number < end; ++number) {
        const auto text = numbers_.text(number);
        std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes.data()) + integers[number - begin]);
      }
    }
    if (!has_texts) return py::make_tuple(to_numpy(std::move(integers)));
    return py::make_tuple(to_numpy(std::move(integers)), to_numpy(std::move(bytes)));
  }

 private:
  static IdNumbers::Kind kind_of(const std::string& kind) {
    if (kind == "texts") return IdNumbers::Kind::kTexts;
    if (kind == "integers") return IdNumbers::Kind::kIntegers;
    throw std::invalid_argument("id_numbers: kind must be texts or integers, got " + kind + ".");
  }

  static IdColumn viewed_of(const py::tuple& column, bool has_texts) {
    IdColumn viewed;
    const auto valid = column[has_texts ? 2 : 1];
    if (!valid.is_none()) viewed.valid = view(exact<std::uint8_t>(valid, "valid"), "valid");
    if (!has_texts) {
      viewed.integers = view(exact<std::int64_t>(column[0], "integers"), "integers");
      return viewed;
    }
    viewed.offsets = view(exact<std::int64_t>(column[0], "offsets"), "offsets");
    const auto bytes = view(exact<std::uint8_t>(column[1], "bytes"), "bytes");
    viewed.bytes = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return viewed;
  }

  mutable std::mutex mutex_;
  IdNumbers numbers_;
};

}  // namespace

void bind_tables(py::module_& m) {
  py::class_<SharedIdNumbers>(m, "IdNumbers")
      .def(py::init<const std::string&, std::uint64_t>(), py::arg("kind"), py::arg("seed"))
      .def("number", &SharedIdNumbers::number, py::arg("columns"), py::kw_only(), py::arg("add"))
      .def("ids", &SharedIdNumbers::ids, py::arg("begin"), py::arg("end"))
      .def_property_readonly("count", &SharedIdNumbers::count);
}

}  // namespace datapipes
