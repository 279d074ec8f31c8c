// module.cpp: the extension module datapipes._core; each bind_*.cpp adds the kernels of one folder.
#include <pybind11/pybind11.h>

namespace datapipes {
void bind_random(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);
void bind_gather(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_shm(pybind11::module_& m);
}  // namespace datapipes

PYBIND11_MODULE(_core, m) {
  m.doc() = "Kernels of datapipes on NumPy arrays. They know neither torch nor Python objects; see the headers in csrc/.";
  datapipes::bind_random(m);
  datapipes::bind_sampling(m);
  datapipes::bind_gather(m);
  datapipes::bind_graph(m);
  datapipes::bind_memory(m);
  datapipes::bind_shm(m);
}
