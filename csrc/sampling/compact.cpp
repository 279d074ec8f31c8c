#include "sampling/compact.h"

#include "graph/row_view.h"
#include "sampling/numbering.h"

namespace datapipes {

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit) {
  for (const Id id : ids) check_node("compact", id, num_nodes);
  Numbering<Id> numbering(num_nodes);
  Buffer<Id> local = numbering.number_all(ids, direct_limit);
  return {.unique = numbering.finish(), .local = std::move(local)};
}

template Compacted<std::int32_t> compact(std::span<const std::int32_t>, std::int64_t, std::int64_t);
template Compacted<std::int64_t> compact(std::span<const std::int64_t>, std::int64_t, std::int64_t);

}  // namespace datapipes
