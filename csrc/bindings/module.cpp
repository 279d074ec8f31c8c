// module.cpp: the extension module datapipes._core, and the bindings of all kernels on arrays. They are one translation unit:
// each further unit would compile pybind11 again, which takes longer than a folder's bindings. The other unit is shm.cpp, so
// that two processors share the work.
#include "bindings/cache.cpp"
#include "bindings/digest.cpp"
#include "bindings/disk.cpp"
#include "bindings/distributed.cpp"
#include "bindings/gather.cpp"
#include "bindings/graph.cpp"
#include "bindings/links.cpp"
#include "bindings/memory.cpp"
#include "bindings/partition.cpp"
#include "bindings/random.cpp"
#include "bindings/sampling.cpp"
#include "bindings/tables.cpp"
#include "bindings/tfrecord.cpp"
#include "bindings/topology.cpp"

namespace datapipes {
void bind_shm(py::module_& m);
}  // namespace datapipes

PYBIND11_MODULE(_core, m) {
  m.doc() = "Kernels of datapipes on NumPy arrays. They know neither torch nor Python objects; see the headers in csrc/.";
  datapipes::bind_random(m);
  datapipes::bind_cache(m);
  datapipes::bind_digest(m);
  datapipes::bind_disk(m);
  datapipes::bind_sampling(m);
  datapipes::bind_gather(m);
  datapipes::bind_graph(m);
  datapipes::bind_links(m);
  datapipes::bind_memory(m);
  datapipes::bind_partition(m);
  datapipes::bind_distributed(m);
  datapipes::bind_tables(m);
  datapipes::bind_tfrecord(m);
  datapipes::bind_shm(m);
}
