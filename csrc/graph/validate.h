// validate.h: checks a whole CSC graph: indptr starts at 0, ascends and ends at num_edges; every neighbor is a node.
//   indptr int64[num_nodes + 1], indices int32 or int64 [num_edges]. O(num_nodes + num_edges), reads only.
// Throws std::invalid_argument (ValueError) that names the first wrong entry. Touches no Python object.
#pragma once

#include "sampling/csc.h"

namespace datapipes {

template <class Id>
void validate_csc(CscView<Id> graph);

}  // namespace datapipes
