// part_weights.h: the weights of the parts, and the lightest part (if equal, the one with the lowest number).
//   O(log num_parts) for a change, O(1) for the lightest; a tournament tree.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace datapipes {

class PartWeights {
 public:
  explicit PartWeights(std::int64_t num_parts)
      : leaves_(std::bit_ceil(static_cast<std::size_t>(num_parts))),
        weights_(leaves_, std::numeric_limits<std::int64_t>::max()),  // the leaves beyond the parts never win
        winners_(leaves_ > 1 ? leaves_ : 0),
        num_parts_(static_cast<std::size_t>(num_parts)) {
    clear();
  }

  std::int64_t operator[](std::size_t part) const { return weights_[part]; }
  std::size_t lightest() const { return winners_.empty() ? 0 : winners_[1]; }

  void add(std::size_t part, std::int64_t weight) {
    weights_[part] += weight;
    for (std::size_t node = (leaves_ + part) / 2; node >= 1; node /= 2) winners_[node] = winner(node);
  }

  void clear() {
    for (std::size_t part = 0; part < num_parts_; ++part) weights_[part] = 0;
    for (std::size_t node = leaves_; node-- > 1;) winners_[node] = winner(node);
  }

 private:
  // The better child of a node; the children of the last nodes are leaves.
  std::size_t winner(std::size_t node) const {
    const std::size_t left = of(2 * node), right = of(2 * node + 1);
    return weights_[right] < weights_[left] ? right : left;
  }
  std::size_t of(std::size_t child) const { return child >= leaves_ ? child - leaves_ : winners_[child]; }

  std::size_t leaves_;
  std::vector<std::int64_t> weights_;
  std::vector<std::size_t> winners_;  // by node; node 1 is the root, node i has the children 2 i and 2 i + 1
  std::size_t num_parts_;
};

}  // namespace datapipes
