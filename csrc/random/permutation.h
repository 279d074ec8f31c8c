// permutation.h: the order in which an epoch visits its items; docs/semantics.md section 2 is its specification.
//   permutation_at(n, key, first, out): out[i] = perm(first + i) for a run of positions.
//   Up to kShuffleLimit items each call shuffles the whole permutation, O(n). Above it one position costs O(1) and no
//   memory, so a process pays only for the minibatches it makes.
// Throws std::out_of_range (IndexError) if the run leaves [0, n). Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

inline constexpr std::uint64_t kShuffleLimit = std::uint64_t{1} << 16;

void permutation_at(std::int64_t num_items, std::uint64_t key, std::int64_t first, std::span<std::int64_t> out);

}  // namespace datapipes
