// id_map_shelf.h: keeps id maps for the next minibatch of any thread.
//   It has as many maps as node types were ever numbered at the same time. A direct map has 4 bytes per node. A forked child
//   starts with an empty shelf.
#pragma once

#include <algorithm>
#include <cstddef>
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

  // Returns the smallest map with room for `num_nodes`, else the largest map, which then grows. So the types of a graph find
  // maps of their own sizes again.
  std::unique_ptr<Map> take(std::int64_t num_nodes) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Map>();
    const auto wanted = static_cast<std::size_t>(num_nodes);
    const auto better = [&](const auto& a, const auto& b) {
      const bool fits = a->capacity() >= wanted, other_fits = b->capacity() >= wanted;
      if (fits != other_fits) return fits;
      return fits ? a->capacity() < b->capacity() : a->capacity() > b->capacity();
    };
    const auto best = std::min_element(idle_.begin(), idle_.end(), better);
    auto map = std::move(*best);
    idle_.erase(best);
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

inline void trim_id_maps() {
  IdMapShelf<DirectIdMap<std::int32_t>>::instance().trim();
  IdMapShelf<DirectIdMap<std::int64_t>>::instance().trim();
  IdMapShelf<HashIdMap<std::int32_t>>::instance().trim();
  IdMapShelf<HashIdMap<std::int64_t>>::instance().trim();
}

// The most local ids: they have 32 bits, and must fit Id. A larger minibatch is refused before any node is numbered.
template <class Id>
inline constexpr std::int64_t kMostLocalIds =
    sizeof(Id) == 4 ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::uint32_t>::max();

inline void check_local_ids(std::int64_t count, std::int64_t most) {
  if (count > most) {
    throw std::length_error("compact: " + std::to_string(count) + " nodes in one minibatch; at most " + std::to_string(most) +
                            " can be numbered. Use a smaller batch_size or fanouts.");
  }
}

}  // namespace datapipes
