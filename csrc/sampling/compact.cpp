#include "sampling/compact.h"

#include <algorithm>

#include "sampling/csc.h"
#include "sampling/id_map_shelf.h"

namespace datapipes {

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit) {
  const auto num_ids = std::ssize(ids);
  for (const Id id : ids) check_node("compact", id, num_nodes);
  const std::int64_t bound = std::min(num_ids, num_nodes);
  check_local_ids(bound);
  return with_id_map<Id>(num_nodes, direct_limit, [&](auto& map) {
    Compacted<Id> result{.unique = Buffer<Id>(bound + 1), .local = Buffer<Id>(num_ids)};
    map.reserve({}, bound);
    const std::int64_t count = number_ahead(map, ids, 0, result.unique.data(), result.local.data());
    result.unique.shrink(count);
    return result;
  });
}

template Compacted<std::int32_t> compact(std::span<const std::int32_t>, std::int64_t, std::int64_t);
template Compacted<std::int64_t> compact(std::span<const std::int64_t>, std::int64_t, std::int64_t);

}  // namespace datapipes
