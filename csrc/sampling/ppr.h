// ppr.h: approximate personalised PageRank by forward push; docs/semantics.md section 4.12.
//   Mass is counted in units of 2^-62, so sums do not depend on their order. A seed begins with all of it as residual. In a round
//   every node whose residual is at least eps * in-degree, or all of the mass, keeps alpha of it, and gives the source of each
//   in-edge a share.
//   ppr_of_graph: for each seed the `count` nodes that kept most, the larger first, then the smaller id; -1 and 0 fill up.
//   PprOverParts: the same where rows come piece by piece. wanted() goes on as far as it can, then returns the nodes whose rows
//   it needs, and up to which in-degree; give() takes them. When nothing is wanted, largest() gives the result away.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on a corrupt graph, on
// options out of their range, and on rows that were not wanted. Touches no Python object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "graph/row_view.h"

namespace datapipes {

struct PprOptions {
  std::uint64_t keep;  // alpha * 2^32, in [1, 2^32]
  std::uint64_t eps;   // eps * 2^62, in [2^22, 2^62]
  std::int64_t count;  // nodes of a seed, at least 1
};

template <class Id>
struct PprNodes {
  Buffer<Id> ids;                // [seeds, count]
  Buffer<std::uint64_t> masses;  // [seeds, count]
  std::int64_t num_edges = 0;    // along which mass was pushed
};

template <class Id>
PprNodes<Id> ppr_of_graph(const char* op, const RowView<Id>& rows, std::span<const std::int64_t> seeds, const PprOptions& options,
                          int threads);

class PprOverParts {
 public:
  PprOverParts(std::span<const std::int64_t> seeds, std::int64_t num_nodes, const PprOptions& options);
  ~PprOverParts();

  // (nodes, for each the largest in-degree with which its row is needed)
  std::pair<Buffer<std::int64_t>, Buffer<std::int64_t>> wanted();

  // The sources of a node whose degree is above the one asked for are left out.
  void give(std::span<const std::int64_t> nodes, std::span<const std::int64_t> degrees, std::span<const std::int64_t> sources);

  PprNodes<std::int64_t> largest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace datapipes
