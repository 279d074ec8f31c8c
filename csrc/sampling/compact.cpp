#include "sampling/compact.h"

#include <algorithm>

#include "sampling/csc.h"
#include "sampling/id_map_shelf.h"

namespace datapipes {

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit) {
  constexpr std::int64_t kBlock = 256;  // ids whose map lines are requested together
  const auto num_ids = std::ssize(ids);
  for (const Id id : ids) check_node("compact", id, num_nodes);
  const std::int64_t bound = std::min(num_ids, num_nodes);
  check_local_ids(bound);
  return with_id_map<Id>(num_nodes, direct_limit, [&](auto& map) {
    Compacted<Id> result{.unique = Buffer<Id>(bound + 1), .local = Buffer<Id>(num_ids)};
    map.reserve({}, bound);
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < num_ids; begin += kBlock) {
      const auto block =
          ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(std::min(kBlock, num_ids - begin)));
      for (const Id id : block) map.prefetch(id);
      count = map.number(block, count, result.unique.data(), result.local.data() + begin);
    }
    result.unique.shrink(count);
    return result;
  });
}

template Compacted<std::int32_t> compact(std::span<const std::int32_t>, std::int64_t, std::int64_t);
template Compacted<std::int64_t> compact(std::span<const std::int64_t>, std::int64_t, std::int64_t);

}  // namespace datapipes
