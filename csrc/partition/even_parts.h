// even_parts.h: moves nodes out of overloaded parts, first the nodes whose moves cut the fewest edges.
//   METIS and Fennel balance one weight for each node, a sum of measures. Each measure may still be uneven, so here each is
//   evened by itself. A part's load of a measure is the sum over its nodes of
//     nodes of a type: 1, one measure for each node type;
//     edges: the in-edges of the node, of all relations;
//     training: 1 for a training node. A measure that is 0 for all nodes does not count.
//   The bound of a measure is the largest of: 1.1 times the mean over the parts, rounded down; the mean, rounded up; the
//   largest value of a node. Excess: a part's load above the bound, divided by the mean; 0 below the bound.
//   Nodes are numbered as in whole_graph.h. The cut counts each edge between two parts, parallel ones each.
//
//   A turn takes the part `from` and the measure with the largest excess above 0.01 (if equal, the lower part, then the
//   earlier measure), and the part `to` with the least load of that measure. Nodes move only from `from` to `to`. Loss of
//   a node: the number of edges that its move adds to the cut. Price: the loss if it is at most 0; else the loss divided by
//   the sum of the node's values, each divided by its mean, over the measures in which `from` has an excess at the start of
//   the turn. A queue holds the nodes of `from`, the lowest price first, then the lowest number. An entry that leaves the
//   queue is dropped if its price is outdated; or if the move would raise the excess of both parts, summed over all
//   measures; or if it would not change this sum and the known loss is 0 or more. Else the loss of the node is counted anew.
//   The node moves, unless the cut would exceed the first cut by more than the larger of more_cut and 15 %, rounded down;
//   then it stays for this turn.
//   After a move, each source of the node's in-edges that is in `from` enters the queue once more, with its known loss: its
//   out-edges as they are, its in-edges as last counted. The known loss is never too small. So no node is counted anew twice
//   in a turn.
//   The turn ends when the queue is empty; or, if `from` has no excess, at the first node with a known loss of 0 or more. A
//   part and measure whose excess a turn did not lower are not taken again. There are at most 4 * num_parts + 8 turns, and
//   at most 2^32 / num_nodes, or 264 if that is more.
//
// even_parts(graph, parts, request, pulse): parts of all nodes, in place. Equal inputs give equal parts on every machine.
// A turn is O(num_nodes + edges of both parts), and O(log num_nodes) for each edge of a node that moves. Memory: 8 bytes and a
// bit a node, 16 bytes for each node of a part and each edge of a node that moves; none if all is even.
// `pulse` is that of pace.h. Throws std::invalid_argument (ValueError) if an offset, an id or a part is outside its range,
// or a mask does not fit its type. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/topology.h"
#include "partition/pace.h"
#include "partition/whole_graph.h"

namespace datapipes {

struct EvenRequest {
  std::int64_t num_parts;
  bool nodes = true, edges = true;  // whether these measures count
  std::int64_t more_cut = 0;        // further edges that may be cut, if 15 % are fewer
  TrainingMasks training;
};

struct Evened {
  // The largest excess of any part, of the measures of nodes, edges and training.
  struct Excess {
    double nodes = 0.0, edges = 0.0, training = 0.0;
  } before, after;
  std::int64_t cut_before = 0, cut_after = 0;
};

template <class Id, class Part>
Evened even_parts(const Topology<Id>& graph, std::span<Part> parts, const EvenRequest& request, const Pulse& pulse);

}  // namespace datapipes
