// padded_layers.h: the local ids of a minibatch that is padded while it is sampled; docs/semantics.md section 5.1.
//   The nodes of a type are in layers: seeds, then what each hop finds. A layer needs as many local ids as the bucket has rows,
//   but the bucket is known only at the end. The guess is the first bucket into which the layers so far fit, or the last one.
//   A layer that does not fit into the guess takes as many local ids as it has nodes.
// Throws std::invalid_argument (ValueError) on buckets of other types or hops. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace datapipes {

struct PadBucket {
  std::vector<std::int64_t> seeds;               // of each type of seeds
  std::vector<std::vector<std::int64_t>> rows;   // of each node type: of each layer; one layer if no hop finds such nodes
  std::vector<std::vector<std::int64_t>> edges;  // of each hop: of each sampled relation
};

struct Padding {
  std::vector<PadBucket> buckets;
  explicit Padding(std::vector<PadBucket> given);
  void check(std::size_t num_types, std::size_t num_hops, std::size_t num_relations, std::size_t seed_types) const;
};

class PaddedLayers {
 public:
  // `num_seeds`: of each type of seeds. The arguments must stay where they are.
  PaddedLayers(const Padding& padding, std::span<const std::int64_t> num_seeds, std::size_t num_types);

  // Ends the layer of all types, given the number of local ids of each so far. Returns where the next layer of each begins.
  std::vector<std::int64_t> end_layer(std::span<const std::int64_t> counts);
  std::int64_t num_edges(std::size_t hop, std::size_t relation) const { return guess().edges[hop][relation]; }

  // Whether a bucket has rows for the seeds, and for the nodes so far, and one more of each.
  bool fits(std::size_t bucket) const;
  std::size_t guessed() const { return guess_; }
  std::span<const std::int64_t> nodes(std::size_t type) const { return nodes_[type]; }    // of each layer
  std::span<const std::int64_t> places(std::size_t type) const { return places_[type]; }  // of each layer: its local ids

 private:
  const PadBucket& guess() const { return padding_.buckets[guess_]; }

  const Padding& padding_;
  std::span<const std::int64_t> num_seeds_;
  std::size_t guess_ = 0;
  std::vector<std::vector<std::int64_t>> nodes_, places_;
  std::vector<std::int64_t> begin_;  // of each type: the first local id of the layer
};

}  // namespace datapipes
