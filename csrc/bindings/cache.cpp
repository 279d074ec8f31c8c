// cache.cpp: RowCache as seen from Python.
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/numpy.h"
#include "cache/row_cache.h"

namespace datapipes {
namespace {

using CachedBytes = py::array_t<std::uint8_t, py::array::c_style>;

void check_rows(const CachedBytes& rows, std::int64_t count, const RowCache& cache) {
  if (rows.ndim() != 2 || rows.shape(0) != count || rows.shape(1) != cache.row_bytes())
    throw std::invalid_argument("row_cache: rows must be contiguous, " + std::to_string(count) + " of " +
                                std::to_string(cache.row_bytes()) + " bytes.");
}

template <class Id, class Class>
void bind_cache_for(Class& cache) {
  cache
      .def(
          "take",
          [](RowCache& self, const Array<Id>& ids, CachedBytes& out, std::int64_t count, std::int64_t first, int num_threads) {
            check_threads(num_threads);
            const auto wanted = view(ids, "ids");
            check_rows(out, std::ssize(wanted), self);
            auto* const to = reinterpret_cast<std::byte*>(out.mutable_data());  // throws if it is read-only
            const CachedTable table{count, first};
            const auto missing = without_gil([&] { return self.take(table, wanted, to, num_threads); });
            return py::array_t<std::int64_t>(static_cast<py::ssize_t>(missing.size()), missing.data());
          },
          py::arg("ids").noconvert(), py::arg("out").noconvert(), py::kw_only(), py::arg("count"), py::arg("first") = 0,
          py::arg("num_threads") = 1)
      .def(
          "put",
          [](RowCache& self, const Array<Id>& ids, const CachedBytes& rows, std::int64_t count, std::int64_t first) {
            const auto wanted = view(ids, "ids");
            check_rows(rows, std::ssize(wanted), self);
            const CachedTable table{count, first};
            const GilRelease nogil;
            self.put(table, wanted, reinterpret_cast<const std::byte*>(rows.data()));
          },
          py::arg("ids").noconvert(), py::arg("rows").noconvert(), py::kw_only(), py::arg("count"), py::arg("first") = 0)
      .def(
          "forget",
          [](RowCache& self, const Array<Id>& ids, std::int64_t count, std::int64_t first) {
            const auto wanted = view(ids, "ids");
            const CachedTable table{count, first};
            const GilRelease nogil;
            self.forget(table, wanted);
          },
          py::arg("ids").noconvert(), py::kw_only(), py::arg("count"), py::arg("first") = 0);
}

Eviction eviction_of(const std::string& policy) {
  if (policy == "sieve") return Eviction::kSieve;
  if (policy == "lru") return Eviction::kLru;
  if (policy == "static") return Eviction::kNone;
  throw std::invalid_argument("row_cache: policy must be sieve, lru or static, got " + policy + ".");
}

}  // namespace

void bind_cache(py::module_& m) {
  py::class_<RowCache> cache(m, "RowCache");
  cache.def(py::init([](std::int64_t slots, std::int64_t row_bytes, const std::string& policy, std::int64_t num_ids) {
              return std::make_unique<RowCache>(slots, row_bytes, eviction_of(policy), num_ids);
            }),
            py::arg("slots"), py::arg("row_bytes"), py::arg("policy"), py::arg("num_ids"));
  cache.def_static("bytes_of_slot", &RowCache::bytes_of_slot, py::arg("row_bytes"));
  cache.def_static(
      "bytes_of_id", [](const std::string& policy) { return RowCache::bytes_of_id(eviction_of(policy)); }, py::arg("policy"));
  cache.def_property_readonly("slots", &RowCache::slots);
  cache.def_property_readonly("row_bytes", &RowCache::row_bytes);
  cache.def_property_readonly("held", &RowCache::held);
  bind_cache_for<std::int32_t>(cache);
  bind_cache_for<std::int64_t>(cache);
}

}  // namespace datapipes
