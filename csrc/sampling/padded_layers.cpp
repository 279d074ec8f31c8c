#include "sampling/padded_layers.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace datapipes {
namespace {

constexpr std::int64_t kMostOfASize = std::int64_t{1} << 40;  // sums of some thousands do not overflow

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("pad: buckets differ in " + what + ", or from the minibatch. Measure the sizes of this chain.");
}

void check_sizes(std::span<const std::int64_t> sizes) {
  for (const std::int64_t size : sizes)
    if (size < 1 || size > kMostOfASize)
      throw std::invalid_argument("pad: a size is " + std::to_string(size) + "; it must be in [1, 2^40]. Use dp.measure_sizes.");
}

}  // namespace

Padding::Padding(std::vector<PadBucket> given) : buckets(std::move(given)) {
  if (buckets.empty()) throw std::invalid_argument("pad: there are no buckets. Pass one.");
  const PadBucket& first = buckets.front();
  for (const PadBucket& bucket : buckets) {
    const std::size_t num_relations = first.edges.empty() ? 0 : first.edges.front().size();
    bool is_same = bucket.rows.size() == first.rows.size() && bucket.edges.size() == first.edges.size() &&
                   bucket.seeds.size() == first.seeds.size();
    for (std::size_t type = 0; is_same && type < first.rows.size(); ++type)
      is_same = !bucket.rows[type].empty() && bucket.rows[type].size() == first.rows[type].size();
    for (const auto& hop : bucket.edges) is_same &= hop.size() == num_relations;
    if (!is_same) refuse("layers, hops or types");
    check_sizes(bucket.seeds);
    for (const auto& rows : bucket.rows) check_sizes(rows);
    for (const auto& edges : bucket.edges) check_sizes(edges);
  }
}

void Padding::check(std::size_t num_types, std::size_t num_hops, std::size_t num_relations, std::size_t seed_types) const {
  const PadBucket& bucket = buckets.front();  // all have the same form
  if (bucket.rows.size() != num_types) refuse("node types");
  if (bucket.edges.size() != num_hops) refuse("hops");
  if (bucket.seeds.size() != seed_types) refuse("types of seeds");
  if (num_hops > 0 && bucket.edges.front().size() != num_relations) refuse("edge types");
}

PaddedLayers::PaddedLayers(const Padding& padding, std::span<const std::int64_t> num_seeds, std::size_t num_types)
    : padding_(padding), num_seeds_(num_seeds), nodes_(num_types), places_(num_types), begin_(num_types, 0) {}

std::vector<std::int64_t> PaddedLayers::end_layer(std::span<const std::int64_t> counts) {
  const std::size_t num_types = counts.size();
  std::vector<bool> has_rows(num_types);  // a type that no hop finds has one layer
  for (std::size_t type = 0; type < num_types; ++type) {
    has_rows[type] = nodes_[type].size() < guess().rows[type].size();
    if (has_rows[type]) nodes_[type].push_back(counts[type] - begin_[type]);
  }
  while (guess_ + 1 < padding_.buckets.size() && !fits(guess_)) ++guess_;
  for (std::size_t type = 0; type < num_types; ++type) {
    if (!has_rows[type]) continue;
    const std::int64_t found = nodes_[type].back();
    places_[type].push_back(std::max(found, guess().rows[type][nodes_[type].size() - 1]));
    begin_[type] += places_[type].back();
  }
  return begin_;
}

bool PaddedLayers::fits(std::size_t bucket) const {
  const PadBucket& sizes = padding_.buckets[bucket];
  const auto less = [](std::span<const std::int64_t> real, std::span<const std::int64_t> rows) {
    return std::equal(real.begin(), real.end(), rows.begin(), std::less<>());
  };
  for (std::size_t type = 0; type < nodes_.size(); ++type)
    if (!less(nodes_[type], sizes.rows[type])) return false;
  return less(num_seeds_, sizes.seeds);
}

}  // namespace datapipes
