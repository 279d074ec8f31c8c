// symmetrise.h: the undirected graph that METIS takes, made of all relations of a whole graph: each edge in both
// directions, no self-loop, no parallel edge, rows ascending. Nodes are numbered as in whole_graph.h.
//   It takes two steps: from the first the caller learns the size of the result, and then chooses its memory.
//   count_neighbors(graph, xadj, pulse): xadj Index[num_nodes + 1] becomes the offsets of rows that hold every edge at
//     both of its ends, self-loops left out. Returns the number of entries, xadj[num_nodes].
//   fill_neighbors(graph, xadj, adjncy, pulse): xadj as above, adjncy Index[xadj[num_nodes] or more]. Fills the rows,
//     sorts them, drops repeats and closes the gaps, in place. Returns the number of entries left; xadj has their offsets.
// Index is int32 or int64, as METIS was built. For `pulse` see pace.h.
// The result depends on the edges only, not on their order. O(num_nodes + num_edges log degree). Memory besides the
// result: 8 bytes per node.
// Throws std::length_error (ValueError) if the entries exceed Index; std::invalid_argument (ValueError) if an offset or
// an id is outside the graph, or xadj is not as above. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "graph/topology.h"
#include "partition/pace.h"

namespace datapipes {

template <class Id, class Index>
std::int64_t count_neighbors(const Topology<Id>& graph, std::span<Index> xadj, const Pulse& pulse);

template <class Id, class Index>
std::int64_t fill_neighbors(const Topology<Id>& graph, std::span<Index> xadj, std::span<Index> adjncy, const Pulse& pulse);

}  // namespace datapipes
