// fennel.h: parts of nodes, chosen one node after another in a stream; for graphs that METIS cannot hold.
//   Fennel (Tsourakakis et al., WSDM 2014) with gamma = 2, over several passes (Nishimura and Ugander, KDD 2013). Nodes
//   are numbered as in whole_graph.h. A pass visits all of them and begins with empty parts. Node v goes to the part p
//   with the largest
//       pull(v, p) - penalty * weight(p),    penalty = 2 * num_edges * num_parts / (num_nodes * total weight),
//   in double, where weight(p) is the weight that p has got in this pass. If equal, the lighter part wins, then the lower
//   number. Open to v are the lightest part, and each part whose weight with v is at most limit(): the mean plus 3 % of it,
//   each rounded down. So no part weighs more than limit(), or than the mean plus the heaviest node.
//   Weight of a node: base, per_edge for each of its in-edges, and extra for a training node.
//   Pull: the number of in-edges of v from nodes of p, without self-loops; parallel edges count each. A node not yet
//   visited in this pass has its part of the pass before. Out-edges pull too, by votes, since only in-edges are stored: a
//   node that gets a part votes for that part at the source of each of its in-edges. A node keeps one candidate part and
//   its lead (Boyer and Moore's majority vote). A vote for the candidate adds 1 to the lead, up to 65,535; any other vote
//   takes 1 away; at lead 0 the next vote names the candidate. When the node is visited, the candidate's pull grows by the
//   lead, and the vote ends.
//   Order of the nodes: blocks of clamp(num_nodes / 256, 1, 1024) successive nodes; block i of every pass is
//   permutation_at(num_blocks, key, i), and nodes ascend within a block. So rows are read in stretches, also from a disk.
//
// Fennel<Id, Part>(graph, request): Part is uint8 for up to 255 parts, uint16 for up to 65,535. A pass:
//   visit(first, count) for all blocks of the pass in order, then end_pass().
//   parts(out): the part of each node, after the first pass.
// Equal inputs give equal parts on every machine: integers, and + - * / of doubles. O(num_edges + num_nodes log
// num_parts) a pass. Memory: 4 bytes a node (6 with uint16) and 32 bytes a part; training masks are viewed.
// Throws std::invalid_argument (ValueError) if an offset or an id is outside the graph, std::out_of_range (IndexError)
// if a block is. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "graph/topology.h"
#include "partition/part_weights.h"
#include "partition/whole_graph.h"

namespace datapipes {

struct FennelRequest {
  std::int64_t num_parts;
  std::uint64_t key;
  std::int64_t base = 1, per_edge = 0, extra = 0;  // weight of a node: base, of each in-edge, of a training node
  TrainingMasks training;
};

template <class Id, class Part>
class Fennel {
 public:
  Fennel(const Topology<Id>& graph, FennelRequest request);

  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t limit() const { return limit_; }
  void visit(std::int64_t first, std::int64_t count);
  std::int64_t end_pass();  // returns the number of nodes whose part has changed in the pass
  void parts(std::span<Part> out) const;

 private:
  static constexpr Part kNone = std::numeric_limits<Part>::max();
  static constexpr std::uint16_t kMostLead = std::numeric_limits<std::uint16_t>::max();
  struct Record {
    Part part, candidate;
    std::uint16_t lead;
  };

  void visit_node(std::size_t type, std::int64_t row);
  void pull(Part part, std::int64_t by);
  Part choose(std::int64_t weight);

  const Topology<Id>& graph_;
  FennelRequest request_;
  std::vector<std::int64_t> first_;             // the number of the first node of each type
  std::vector<std::vector<std::size_t>> into_;  // the relations into each type
  std::int64_t block_nodes_, num_blocks_, limit_;
  double penalty_;
  Buffer<Record> records_;
  PartWeights weights_;
  std::vector<std::int64_t> pulls_;   // of each part; 0 between two nodes
  std::vector<std::size_t> pulling_;  // the parts whose pull is not 0
  std::int64_t moved_ = 0;
};

}  // namespace datapipes
