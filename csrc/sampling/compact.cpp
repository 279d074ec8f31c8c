#include "sampling/compact.h"

#include "common/load.h"
#include "graph/row_view.h"
#include "sampling/numbering.h"

namespace datapipes {

template <class Id>
Buffer<Id> checked_ids(std::span<const Id> ids, std::int64_t num_nodes) {
  Buffer<Id> checked(std::ssize(ids));
  Id* out = checked.data();
  for (const Id& given : ids) {
    const Id id = read_once(given);
    check_node("compact", id, num_nodes);
    *out++ = id;
  }
  return checked;
}

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit) {
  Buffer<Id> local = checked_ids(ids, num_nodes);
  Numbering<Id> numbering(num_nodes);
  numbering.number_all({local.data(), ids.size()}, local.data(), direct_limit);
  return {.unique = numbering.finish(), .local = std::move(local)};
}

template Buffer<std::int32_t> checked_ids(std::span<const std::int32_t>, std::int64_t);
template Buffer<std::int64_t> checked_ids(std::span<const std::int64_t>, std::int64_t);
template Compacted<std::int32_t> compact(std::span<const std::int32_t>, std::int64_t, std::int64_t);
template Compacted<std::int64_t> compact(std::span<const std::int64_t>, std::int64_t, std::int64_t);

}  // namespace datapipes
