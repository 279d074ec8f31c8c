#include "graph/csc_to_coo.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/inside.h"
#include "common/load.h"

namespace datapipes {
namespace {

constexpr std::int64_t kStep = 4;
constexpr const char* kRemedy = ". Correct the stage that made the block.";

// The edges [begin, end) of the rows from `first` on.
struct Range {
  std::int64_t first, begin, end;
  std::int64_t size() const { return end - begin; }
};

[[noreturn]] void refuse(std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t num_edges) {
  throw std::invalid_argument("edge_index: the indptr of a block is " + std::to_string(begin) + " at position " +
                              std::to_string(row) + ", and " + std::to_string(end) +
                              " at a later one; it must not descend, and stay from 0 to " + std::to_string(num_edges) +
                              ", the number of edges" + kRemedy);
}

template <class Id>
Range edges_from(const RowView<Id>& hop, std::int64_t first) {
  if (hop.num_rows() < first)
    throw std::invalid_argument("edge_index: the indptr of a block has " + std::to_string(hop.indptr.size()) +
                                " entries; it must have " + std::to_string(first + 1) +
                                " or more, one for each destination of the block before and 1 more" + kRemedy);
  const Range edges{first, read_once(hop.indptr[static_cast<std::size_t>(first)]), read_once(hop.indptr.back())};
  if (!is_range_inside(edges.begin, edges.end, std::ssize(hop.indices)))
    refuse(first, edges.begin, edges.end, std::ssize(hop.indices));
  return edges;
}

// Writes the row of each edge of `edges`, and up to kStep - 1 values behind the last; never more, even if the indptr changes
// meanwhile. Rows are short, so steps of a fixed width take half the time of fills of exact width.
template <class Id>
void fill_rows(const RowView<Id>& hop, const Range& edges, std::int64_t* to) {
  std::int64_t reached = edges.begin;
  for (std::int64_t row = edges.first; row < hop.num_rows(); ++row) {
    const std::int64_t end = read_once(hop.indptr[static_cast<std::size_t>(row) + 1]);
    if (end < reached || end > edges.end) refuse(row, reached, end, edges.end);
    for (std::int64_t i = 0; i < end - reached; i += kStep) std::fill_n(to + i, kStep, row);
    to += end - reached;
    reached = end;
  }
  if (reached != edges.end) refuse(edges.first, reached, edges.end, edges.end);  // the indptr changed while it was read
}

}  // namespace

template <class Id>
Coo csc_to_coo(std::span<const RowView<Id>> hops, std::span<const std::span<const std::int64_t>> edge_ids) {
  std::vector<Range> taken;
  std::int64_t count = 0, first = 0;
  for (const auto& hop : hops) {
    taken.push_back(edges_from(hop, first));
    count += taken.back().size();
    first = hop.num_rows();
  }
  for (std::size_t i = 0; i < edge_ids.size(); ++i)
    if (edge_ids.size() != hops.size() || edge_ids[i].size() != hops[i].indices.size())
      throw std::invalid_argument("edge_index: a block has " + std::to_string(edge_ids[i].size()) +
                                  " edge ids; there must be one for each edge" + kRemedy);
  Coo coo{Buffer<std::int64_t>(2 * count + kStep - 1), {}};
  coo.edges.resize(2 * count);
  if (!edge_ids.empty()) coo.ids = Buffer<std::int64_t>(count);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const auto& [row, begin, end] = taken[i];
    std::copy(hops[i].indices.begin() + begin, hops[i].indices.begin() + end, coo.edges.data() + before);
    fill_rows(hops[i], taken[i], coo.edges.data() + count + before);
    if (!edge_ids.empty()) std::copy(edge_ids[i].begin() + begin, edge_ids[i].begin() + end, coo.ids.data() + before);
    before += taken[i].size();
  }
  return coo;
}

template Coo csc_to_coo(std::span<const RowView<std::int32_t>>, std::span<const std::span<const std::int64_t>>);
template Coo csc_to_coo(std::span<const RowView<std::int64_t>>, std::span<const std::span<const std::int64_t>>);

}  // namespace datapipes
