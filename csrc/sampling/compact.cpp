#include "sampling/compact.h"

#include <algorithm>

#include "sampling/csc.h"
#include "sampling/thread_map.h"

namespace datapipes {

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit) {
  constexpr std::int64_t kDistance = 24;
  const auto num_ids = std::ssize(ids);
  for (const Id id : ids) check_node("compact", id, num_nodes);
  return with_id_map(num_nodes, direct_limit, [&](auto& map) {
    Compacted<Id> result{.unique = Buffer<Id>(std::min(num_ids, num_nodes)), .local = Buffer<Id>(num_ids)};
    map.reserve(num_ids);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < num_ids; ++i) {
      if (i + kDistance < num_ids) map.prefetch(ids[i + kDistance]);
      const std::int64_t local = map.find_or_insert(ids[i], count);
      if (local == count) result.unique[count++] = ids[i];
      result.local[i] = static_cast<Id>(local);
    }
    result.unique.shrink(count);
    return result;
  });
}

template Compacted<std::int32_t> compact(std::span<const std::int32_t>, std::int64_t, std::int64_t);
template Compacted<std::int64_t> compact(std::span<const std::int64_t>, std::int64_t, std::int64_t);

}  // namespace datapipes
