// validate.h: checks all rows: indptr starts at 0, ascends and ends at num_edges; every neighbor is a source.
//   O(num_rows + num_edges), reads only.
// Throws std::invalid_argument (ValueError) that names the first wrong entry. Touches no Python object.
#pragma once

#include "graph/row_view.h"

namespace datapipes {

template <class Id>
void validate_csc(const RowView<Id>& graph);

}  // namespace datapipes
