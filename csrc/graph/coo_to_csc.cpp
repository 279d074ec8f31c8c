#include "graph/coo_to_csc.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace datapipes {
namespace {

constexpr std::int64_t kMaxNodes = std::int64_t{1} << 48;  // num_nodes + 1 offsets must be countable

template <class Id>
void check_ids(const char* row, std::span<const Id> ids, std::int64_t num_nodes) {
  for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= static_cast<std::uint64_t>(num_nodes)) {
      throw std::out_of_range(std::string("coo_to_csc: ") + row + "[" + std::to_string(i) + "] is " + std::to_string(ids[i]) +
                              ", which must be in [0, " + std::to_string(num_nodes) + "). Raise num_nodes or drop the edge.");
    }
  }
}

}  // namespace

template <class Id>
Csc<Id> coo_to_csc(std::span<const Id> src, std::span<const Id> dst, std::int64_t num_nodes) {
  if (src.size() != dst.size()) {
    throw std::invalid_argument("coo_to_csc: " + std::to_string(src.size()) + " sources but " + std::to_string(dst.size()) +
                                " destinations; give one of each for every edge.");
  }
  if (num_nodes < 0)
    throw std::invalid_argument("coo_to_csc: num_nodes must be 0 or more, got " + std::to_string(num_nodes) + ".");
  if (num_nodes > kMaxNodes)
    throw std::invalid_argument("coo_to_csc: num_nodes must be at most 2^48, got " + std::to_string(num_nodes) + ".");
  check_ids("src", src, num_nodes);
  check_ids("dst", dst, num_nodes);
  const auto num_edges = std::ssize(src);
  Csc<Id> csc{
      .indptr = Buffer<std::int64_t>(num_nodes + 1), .indices = Buffer<Id>(num_edges), .order = Buffer<std::int64_t>(num_edges)};
  std::fill_n(csc.indptr.data(), num_nodes + 1, std::int64_t{0});
  for (const Id node : dst) ++csc.indptr[node + 1];
  for (std::int64_t v = 0; v < num_nodes; ++v) csc.indptr[v + 1] += csc.indptr[v];
  std::vector<std::int64_t> next(csc.indptr.data(), csc.indptr.data() + num_nodes);
  for (std::int64_t edge = 0; edge < num_edges; ++edge) {
    const std::int64_t place = next[static_cast<std::size_t>(dst[edge])]++;
    csc.indices[place] = src[edge];
    csc.order[place] = edge;
  }
  return csc;
}

template Csc<std::int32_t> coo_to_csc(std::span<const std::int32_t>, std::span<const std::int32_t>, std::int64_t);
template Csc<std::int64_t> coo_to_csc(std::span<const std::int64_t>, std::span<const std::int64_t>, std::int64_t);

}  // namespace datapipes
