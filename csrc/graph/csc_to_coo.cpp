#include "graph/csc_to_coo.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/inside.h"
#include "common/load.h"

namespace datapipes {
namespace {

constexpr std::int64_t kStep = 4;

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

[[noreturn]] void refuse() {
  throw std::invalid_argument("edge_index: the indptr of a block does not ascend within its edges. Correct what made the block.");
}

template <class Id>
Range edges_of(const CscPart<Id>& part) {
  const std::int64_t num_columns = std::ssize(part.indptr) - 1;
  if (!is_range_inside(part.first, num_columns, num_columns))
    throw std::invalid_argument("edge_index: a block has fewer destinations than the one before it, or an empty indptr.");
  if (part.edge_ids && part.edge_ids->size() != part.indices.size())
    throw std::invalid_argument("edge_index: a block has another number of edge ids than of edges.");
  const Range edges{read_once(part.indptr[static_cast<std::size_t>(part.first)]), read_once(part.indptr.back())};
  if (!is_range_inside(edges.begin, edges.end, std::ssize(part.indices))) refuse();
  return edges;
}

// Writes the column of each edge of `edges`, and up to kStep - 1 values behind the last; nothing else, whatever the indptr says
// meanwhile. Columns are short, so steps of one width take half the time of fills of the right one.
template <class Id>
void fill_columns(const CscPart<Id>& part, const Range& edges, std::int64_t* to) {
  std::int64_t reached = edges.begin;
  for (std::size_t column = static_cast<std::size_t>(part.first); column + 1 < part.indptr.size(); ++column) {
    const std::int64_t end = read_once(part.indptr[column + 1]);
    if (end < reached || end > edges.end) refuse();
    for (std::int64_t i = 0; i < end - reached; i += kStep) std::fill_n(to + i, kStep, static_cast<std::int64_t>(column));
    to += end - reached;
    reached = end;
  }
  if (reached != edges.end) refuse();
}

}  // namespace

template <class Id>
Coo csc_to_coo(std::span<const CscPart<Id>> parts) {
  std::vector<Range> taken;
  std::int64_t count = 0;
  bool has_ids = !parts.empty();
  for (const auto& part : parts) {
    taken.push_back(edges_of(part));
    count += taken.back().size();
    has_ids = has_ids && part.edge_ids;
  }
  Coo coo{Buffer<std::int64_t>(2 * count + kStep - 1), {}};
  coo.edges.shrink(2 * count);
  if (has_ids) coo.ids = Buffer<std::int64_t>(count);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [begin, end] = taken[i];
    std::copy(parts[i].indices.begin() + begin, parts[i].indices.begin() + end, coo.edges.data() + before);
    fill_columns(parts[i], taken[i], coo.edges.data() + count + before);
    if (has_ids) std::copy(parts[i].edge_ids->begin() + begin, parts[i].edge_ids->begin() + end, coo.ids.data() + before);
    before += taken[i].size();
  }
  return coo;
}

template Coo csc_to_coo(std::span<const CscPart<std::int32_t>>);
template Coo csc_to_coo(std::span<const CscPart<std::int64_t>>);

}  // namespace datapipes
