// thread_map.h: lends the calling thread's id map to a kernel, by the size of the graph.
//   The map belongs to the thread and is reused by its next minibatch: 4 bytes a node up to `direct_limit` nodes.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampling/id_map.h"

namespace datapipes {

template <class Id, class Use>
auto with_id_map(std::int64_t num_nodes, std::int64_t direct_limit, Use&& use) {
  if (num_nodes <= direct_limit) {
    thread_local DirectIdMap<Id> direct;
    direct.start(num_nodes);
    return use(direct);
  }
  thread_local HashIdMap<Id> hashed;
  hashed.start(num_nodes);
  return use(hashed);
}

// Local ids are kept in 32 bits; a minibatch beyond that is refused before anything is numbered.
inline void check_local_ids(std::int64_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("compact: " + std::to_string(count) +
                            " nodes in one minibatch; at most 4294967295 can be numbered. Use a smaller batch_size or fanouts.");
  }
}

}  // namespace datapipes
