// id_map_shelf.h: lends an id map, direct or hashed by the size of the graph, to a kernel for one call.
//   The shelf keeps maps for the next call of any thread. There are as many maps as calls that ran at the same time. A
//   map takes 4 bytes per node in graphs of up to `direct_limit` nodes. A forked child starts with an empty shelf.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/per_process.h"
#include "sampling/id_map.h"

namespace datapipes {

template <class Map>
class IdMapShelf {
 public:
  static IdMapShelf& instance() { return per_process<IdMapShelf>(); }

  std::unique_ptr<Map> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Map>();
    auto map = std::move(idle_.back());
    idle_.pop_back();
    return map;
  }
  void give(std::unique_ptr<Map> map) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(map));
  }
  void trim() {  // frees the maps that no call uses
    std::vector<std::unique_ptr<Map>> dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(idle_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Map>> idle_;
};

template <class Map, class Use>
auto with_map(std::int64_t num_nodes, Use&& use) {
  auto& shelf = IdMapShelf<Map>::instance();
  auto map = shelf.take();
  map->start(num_nodes);  // a map whose call throws is destroyed, since its content is unknown
  auto result = use(*map);
  shelf.give(std::move(map));
  return result;
}

template <class Id, class Use>
auto with_id_map(std::int64_t num_nodes, std::int64_t direct_limit, Use&& use) {
  return num_nodes <= direct_limit ? with_map<DirectIdMap<Id>>(num_nodes, use) : with_map<HashIdMap<Id>>(num_nodes, use);
}

inline void trim_id_maps() {
  IdMapShelf<DirectIdMap<std::int32_t>>::instance().trim();
  IdMapShelf<DirectIdMap<std::int64_t>>::instance().trim();
  IdMapShelf<HashIdMap<std::int32_t>>::instance().trim();
  IdMapShelf<HashIdMap<std::int64_t>>::instance().trim();
}

// Local ids have 32 bits. Refuse a larger minibatch before any node is numbered.
inline void check_local_ids(std::int64_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    throw std::length_error("compact: " + std::to_string(count) +
                            " nodes in one minibatch; at most 4294967295 can be numbered. Use a smaller batch_size or fanouts.");
  }
}

}  // namespace datapipes
