#include "links/exclude_edges.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "common/inside.h"
#include "common/load.h"

namespace datapipes {
namespace {

constexpr std::size_t kBitsPerEntry = 8;
constexpr std::size_t kAhead = 8;  // columns, and entries of a line

// The finaliser of SplitMix64 (Steele et al., 2014), applied to a mix of both numbers.
std::uint64_t hash_of(std::int64_t one, std::int64_t other) {
  std::uint64_t value = static_cast<std::uint64_t>(one) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(other);
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
  value = (value ^ value >> 27) * 0x94D049BB133111EBu;
  return value ^ value >> 31;
}

template <class T>
void copy_without(std::span<const T> from, const std::vector<std::int64_t>& positions, T* to) {
  std::int64_t begin = 0;
  const auto copy = [&](std::int64_t end) {
    if (end > begin) std::memcpy(to, from.data() + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
    to += end - begin;
    begin = end + 1;
  };
  for (const std::int64_t position : positions) copy(position);
  copy(std::ssize(from));
}

}  // namespace

PairSet::PairSet(std::size_t most)
    : entries_(std::bit_ceil(2 * most + 1)), filter_(std::bit_ceil(kBitsPerEntry * most / 64 + 1)) {}

std::size_t PairSet::place_of(std::uint64_t hash, std::int64_t one, std::int64_t other) const {
  std::size_t place = static_cast<std::size_t>(hash >> 32) & (entries_.size() - 1);
  while (entries_[place].used && (entries_[place].one != one || entries_[place].other != other))
    place = (place + 1) & (entries_.size() - 1);
  return place;
}

void PairSet::add(std::int64_t one, std::int64_t other) {
  const std::uint64_t hash = hash_of(one, other), bit = hash & (filter_.size() * 64 - 1);
  entries_[place_of(hash, one, other)] = {one, other, true};
  filter_[bit / 64] |= std::uint64_t{1} << bit % 64;
}

bool PairSet::has(std::int64_t one, std::int64_t other) const {
  const std::uint64_t hash = hash_of(one, other), bit = hash & (filter_.size() * 64 - 1);
  return (filter_[bit / 64] >> bit % 64 & 1) != 0 && entries_[place_of(hash, one, other)].used;
}

ExcludedEdges::ExcludedEdges(std::span<const std::int64_t> sources, std::span<const std::int64_t> destinations)
    : by_id_(false), destinations_(destinations.size()), edges_(destinations.size()) {
  if (sources.size() != destinations.size()) throw std::invalid_argument("exclude_edges: give one source for each destination.");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::int64_t destination = read_once(destinations[i]);
    destinations_.add(destination, 0);
    edges_.add(destination, read_once(sources[i]));
  }
}

ExcludedEdges::ExcludedEdges(std::span<const std::int64_t> ids) : by_id_(true), edges_(ids.size()) {
  for (const std::int64_t& id : ids) edges_.add(read_once(id), 0);
}

// The positions of the hop's edges that are excluded, ascending.
template <class Id>
std::vector<std::int64_t> ExcludedEdges::excluded_positions(const LocalHop<Id>& hop) const {
  std::vector<std::int64_t> found;
  if (by_id_) {
    for (std::int64_t p = 0; p < std::ssize(*hop.edge_ids); ++p)
      if (edges_.has((*hop.edge_ids)[static_cast<std::size_t>(p)], 0)) found.push_back(p);
    return found;
  }
  struct Column {
    std::int64_t destination, begin, end;
  };
  std::int64_t reached = 0;
  std::vector<Column> columns;  // with a destination in a pair; the input of the next loop is prefetched here
  for (std::size_t column = 0; column + 1 < hop.indptr.size(); ++column) {
    const auto destination = static_cast<std::int64_t>(hop.dst_nodes[column]);
    if (!destinations_.has(destination, 0)) continue;
    const std::int64_t begin = read_once(hop.indptr[column]), end = read_once(hop.indptr[column + 1]);
    if (begin < reached || !is_range_inside(begin, end, std::ssize(hop.indices)))
      throw std::invalid_argument("exclude_edges: the indptr of a block does not ascend within its edges.");
    reached = end;
    __builtin_prefetch(hop.indices.data() + begin);
    __builtin_prefetch(hop.indices.data() + begin + kAhead);
    columns.push_back({destination, begin, end});
  }
  const auto source_at = [&](std::int64_t p) {
    const auto source = static_cast<std::int64_t>(read_once(hop.indices[static_cast<std::size_t>(p)]));
    if (!is_inside(source, std::ssize(hop.src_nodes)))
      throw std::invalid_argument("exclude_edges: a local id of a block is not below its number of sources.");
    return hop.src_nodes.data() + source;
  };
  for (std::size_t i = 0; i < columns.size() + kAhead; ++i) {
    if (i < columns.size())
      for (std::int64_t p = columns[i].begin; p < columns[i].end; ++p) __builtin_prefetch(source_at(p));
    if (i < kAhead) continue;
    const auto& [destination, begin, end] = columns[i - kAhead];
    for (std::int64_t p = begin; p < end; ++p)
      if (edges_.has(destination, static_cast<std::int64_t>(*source_at(p)))) found.push_back(p);
  }
  return found;
}

template <class Id>
std::optional<KeptEdges<Id>> ExcludedEdges::without(const LocalHop<Id>& hop) const {
  if (hop.indptr.empty() || hop.indptr.size() - 1 > hop.dst_nodes.size())
    throw std::invalid_argument("exclude_edges: a block has more destinations than nodes.");
  if (hop.edge_ids ? hop.edge_ids->size() != hop.indices.size() : by_id_)
    throw std::invalid_argument("exclude_edges: give one edge id for each edge.");
  const std::vector<std::int64_t> excluded = excluded_positions(hop);
  if (excluded.empty()) return std::nullopt;
  const auto count = static_cast<std::int64_t>(excluded.size());
  KeptEdges<Id> kept{Buffer<std::int64_t>(std::ssize(hop.indptr)), Buffer<Id>(std::ssize(hop.indices) - count), {}};
  copy_without(hop.indices, excluded, kept.indices.data());
  if (hop.edge_ids) {
    kept.edge_ids = Buffer<std::int64_t>(std::ssize(*hop.edge_ids) - count);
    copy_without(*hop.edge_ids, excluded, kept.edge_ids.data());
  }
  std::int64_t before = 0, column = 0;
  for (; column < std::ssize(hop.indptr); ++column) {
    const std::int64_t offset = hop.indptr[static_cast<std::size_t>(column)];
    while (before < count && excluded[static_cast<std::size_t>(before)] < offset) ++before;
    kept.indptr[column] = offset - before;
  }
  return kept;
}

template std::optional<KeptEdges<std::int32_t>> ExcludedEdges::without(const LocalHop<std::int32_t>&) const;
template std::optional<KeptEdges<std::int64_t>> ExcludedEdges::without(const LocalHop<std::int64_t>&) const;

}  // namespace datapipes
