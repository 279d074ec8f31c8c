// even_parts.h: parts that have too much of something give nodes away, those first that cost the fewest cut edges.
//   METIS and Fennel balance one weight for each node. What that weight is made of may be uneven all the same: here each
//   measure is evened by itself. A part's load of a measure is the sum over its nodes of
//     nodes of a type: 1, one measure for each node type;
//     edges: the in-edges of the node, of all relations;
//     training: 1 for a training node. A measure that no node has anything of does not count.
//   The bound of a measure is the largest of: 1.1 times the mean over the parts, rounded down; the mean, rounded up; what
//   the node has that has most. Excess: what a part has above the bound, divided by the mean; 0 below it.
//   Nodes are numbered as in whole_graph.h. The cut counts each edge between two parts, parallel ones each.
//
//   A turn takes the part `from` and the measure of the largest excess above 0.01 (of equal ones the lower part, then the
//   earlier measure), and the part `to` with the least of that measure. Nodes move from the one to the other only. Loss of
//   a node: by how much its move lengthens the cut. Price: the loss if that is at most 0, else the loss divided by what
//   the node has, each divided by the mean, of the measures in which `from` has too much when the turn begins. A queue
//   holds the nodes of `from`, the lowest price first, then the lowest number. What leaves it is dropped if the price is no
//   longer that of the node; or if the move would raise the excess of both parts over all measures, or leave it while the
//   known loss is not below 0. Else the loss of the node is counted anew. It moves, unless the cut would exceed the first one
//   by more than more_cut, or by more than 15 %, rounded down, if that is more; then the node stays for this turn.
//   When it has moved, each source of its in-edges that is in `from` enters the queue once more, by what is known of its
//   loss: its out-edges as they are, its in-edges as they were counted last, which is never too little. So no node is
//   counted anew twice in a turn.
//   The turn ends with the queue; or where `from` has no excess, with the first node whose known loss is not below 0. A
//   part and measure whose excess a turn has not lowered are left alone from then on. There are at most
//   4 * num_parts + 8 turns, and at most 2^32 / num_nodes, or 264 if that is more.
//
// even_parts(graph, parts, request, pulse): parts of all nodes, in place. Equal inputs give equal parts on every machine.
// A turn is O(num_nodes + edges of both parts), and O(log num_nodes) for each edge of a node that moves. Memory: 8 bytes and a
// bit a node, 16 bytes for each node of a part and each edge of a node that moves; nothing where all is even.
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
  std::int64_t more_cut = 0;        // edges that may be cut more, if 15 % are fewer
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
