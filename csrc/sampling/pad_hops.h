// pad_hops.h: gives the hops of a minibatch the sizes of the first bucket into which it fits; docs/semantics.md section 5.1.
//   Hops has left gaps for the rows of padding. If they are those of the bucket, only ends are written; else all is copied.
//   The groups of padding are 0. Returns the number of the bucket. If no bucket fits: nothing, and the hops without padding.
// Touches no Python object.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "sampling/hops.h"

namespace datapipes {

// ends: the source and destination types of the sampled relations.
template <class Id>
std::optional<std::size_t> pad_hops(std::vector<std::vector<CompactedHop<Id>>>& hops, FoundNodes<Id>& found,
                                    const std::vector<std::pair<std::size_t, std::size_t>>& ends, const PaddedLayers& layers,
                                    const HopsRequest& request, int threads);

}  // namespace datapipes
