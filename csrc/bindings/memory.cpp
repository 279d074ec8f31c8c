// memory.cpp: the pool of recycled outputs for Python, and the limit of random reads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "bindings/numpy.h"
#include "common/buffer_pool.h"
#include "common/counters.h"
#include "limits/read_lines.h"
#include "sampling/id_map_shelf.h"

namespace datapipes {

void bind_memory(py::module_& m) {
  m.def("pool_stats", [] {
    const auto stats = BufferPool::instance().stats();
    py::dict shown;
    shown["in_use_bytes"] = stats.in_use_bytes;
    shown["idle_bytes"] = stats.idle_bytes;
    shown["peak_bytes"] = stats.peak_bytes;
    shown["reused"] = stats.reused;
    shown["fresh"] = stats.fresh;
    return shown;
  });
  m.def("pool_trim", [] {
    const GilRelease nogil;
    BufferPool::instance().trim();
    trim_id_maps();
  });
  m.def(
      "add_to",
      [](Array<std::int64_t>& counters, const std::vector<std::int64_t>& amounts) {
        const auto found = view(counters, "counters");
        add_to({counters.mutable_data(), found.size()}, amounts);
      },
      py::arg("counters").noconvert(), py::arg("amounts"));
  m.def(
      "read_lines",
      [](const Array<std::uint8_t>& memory, const Array<std::uint32_t>& lines, int num_threads) {
        const auto all = view(memory, "memory");
        const auto wanted = view(lines, "lines");
        check_threads(num_threads);
        const GilRelease nogil;
        return read_lines(all, wanted, num_threads);
      },
      py::arg("memory").noconvert(), py::arg("lines").noconvert(), py::kw_only(), py::arg("num_threads") = 1);
}

}  // namespace datapipes
