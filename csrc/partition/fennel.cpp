#include "partition/fennel.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/inside.h"
#include "partition/whole_graph.h"
#include "random/permutation.h"

namespace datapipes {
namespace {

constexpr std::int64_t kAhead = 24;  // edges between a prefetch and its use
constexpr std::int64_t kMostBlockNodes = 1024, kBlocksWanted = 256;

FennelRequest&& checked(FennelRequest&& request, std::int64_t most_parts) {
  if (request.num_parts < 1 || request.num_parts > most_parts)
    throw std::invalid_argument("Partitioner: num_parts must be in [1, " + std::to_string(most_parts) + "], got " +
                                std::to_string(request.num_parts) + ".");
  return std::move(request);
}

std::int64_t total_weight(const FennelRequest& request, std::int64_t num_nodes, std::int64_t num_edges) {
  std::int64_t trained = 0;
  for (const auto& mask : request.training)
    for (const std::uint8_t is_training : mask) trained += is_training != 0;
  return request.base * num_nodes + request.per_edge * num_edges + request.extra * trained;
}

}  // namespace

template <class Id, class Part>
Fennel<Id, Part>::Fennel(const Topology<Id>& graph, FennelRequest request)
    : graph_(graph),
      request_(checked(std::move(request), kNone)),
      first_(first_nodes(graph)),
      into_(relations_into(graph)),
      block_nodes_(std::clamp<std::int64_t>(first_.back() / kBlocksWanted, 1, kMostBlockNodes)),
      num_blocks_((first_.back() + block_nodes_ - 1) / block_nodes_),
      records_(first_.back()),
      weights_(request_.num_parts),
      pulls_(static_cast<std::size_t>(request_.num_parts)) {
  const std::int64_t num_nodes = first_.back();
  check_training(graph, request_.training);
  std::int64_t num_edges = 0;
  for (const auto& relation : graph.relations) num_edges += std::ssize(relation.rows.indices);
  const std::int64_t total = total_weight(request_, num_nodes, num_edges);
  limit_ = total / request_.num_parts + 3 * total / (100 * request_.num_parts);
  const double edges_of_parts = 2.0 * static_cast<double>(num_edges) * static_cast<double>(request_.num_parts);
  penalty_ = num_nodes == 0 ? 0.0 : edges_of_parts / (static_cast<double>(num_nodes) * static_cast<double>(total));
  std::fill_n(records_.data(), num_nodes, Record{kNone, 0, 0});
}

template <class Id, class Part>
void Fennel<Id, Part>::visit(std::int64_t first, std::int64_t count) {
  if (count < 0) throw std::invalid_argument("Partitioner: a number of blocks must be 0 or more.");
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(count));
  permutation_at(num_blocks_, request_.key, first, blocks);
  for (const std::int64_t block : blocks) {
    std::int64_t node = block * block_nodes_;
    const std::int64_t end = std::min(node + block_nodes_, first_.back());
    auto type = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), node) - first_.begin()) - 1;
    for (; node < end; ++node) {
      while (node >= first_[type + 1]) ++type;
      visit_node(type, node - first_[type]);
    }
  }
}

template <class Id, class Part>
void Fennel<Id, Part>::visit_node(std::size_t type, std::int64_t row) {
  const std::int64_t node = first_[type] + row;
  std::int64_t in_edges = 0;
  for (const std::size_t number : into_[type]) {
    const auto& relation = graph_.relations[number];
    const auto& indices = relation.rows.indices;
    Record* const sources = records_.data() + first_[relation.src];
    const auto [begin, end] = check_row(relation, row);
    in_edges += end - begin;
    for (std::int64_t at = begin; at < end; ++at) {
      if (at + kAhead < std::ssize(indices)) {
        const std::int64_t later = indices[static_cast<std::size_t>(at + kAhead)];
        if (is_inside(later, relation.rows.num_sources)) __builtin_prefetch(sources + later, 1);
      }
      const Record* const source = sources + source_at(relation, at);
      if (source->part != kNone && source != records_.data() + node) pull(source->part, 1);
    }
  }
  Record& record = records_[node];
  if (record.lead > 0) pull(record.candidate, record.lead);
  record.lead = 0;
  const auto& training = request_.training[type];
  const bool is_training = !training.empty() && training[static_cast<std::size_t>(row)] != 0;
  const std::int64_t weight = request_.base + request_.per_edge * in_edges + (is_training ? request_.extra : 0);
  const Part chosen = choose(weight);
  moved_ += record.part != chosen;
  record.part = chosen;
  weights_.add(chosen, weight);
  for (const std::size_t number : into_[type]) {
    const auto& relation = graph_.relations[number];
    Record* const sources = records_.data() + first_[relation.src];
    const auto [begin, end] = check_row(relation, row);
    for (std::int64_t at = begin; at < end; ++at) {
      Record& source = sources[source_at(relation, at)];
      if (&source == &record) continue;
      if (source.lead == 0) {
        source.candidate = chosen;
        source.lead = 1;
      } else if (source.candidate != chosen) {
        --source.lead;
      } else if (source.lead != kMostLead) {
        ++source.lead;
      }
    }
  }
}

template <class Id, class Part>
void Fennel<Id, Part>::pull(Part part, std::int64_t by) {
  if (pulls_[part] == 0) pulling_.push_back(part);
  pulls_[part] += by;
}

// Of two parts without pull, the lighter has the higher score. So only the lightest part and the parts with pull can win.
template <class Id, class Part>
Part Fennel<Id, Part>::choose(std::int64_t weight) {
  const auto worth = [this](std::size_t part) {
    return static_cast<double>(pulls_[part]) - penalty_ * static_cast<double>(weights_[part]);
  };
  std::size_t best = weights_.lightest();
  double best_worth = worth(best);
  for (const std::size_t part : pulling_) {
    if (weights_[part] + weight > limit_) continue;
    const double found = worth(part);
    const bool wins_tie = weights_[part] < weights_[best] || (weights_[part] == weights_[best] && part < best);
    if (found > best_worth || (found == best_worth && wins_tie)) {
      best = part;
      best_worth = found;
    }
  }
  for (const std::size_t part : pulling_) pulls_[part] = 0;
  pulling_.clear();
  return static_cast<Part>(best);
}

template <class Id, class Part>
std::int64_t Fennel<Id, Part>::end_pass() {
  weights_.clear();
  return std::exchange(moved_, 0);
}

template <class Id, class Part>
void Fennel<Id, Part>::parts(std::span<Part> out) const {
  if (std::ssize(out) != records_.size()) throw std::invalid_argument("Partitioner: give room for the part of each node.");
  for (std::int64_t v = 0; v < records_.size(); ++v) out[static_cast<std::size_t>(v)] = records_[v].part;
}

template class Fennel<std::int32_t, std::uint8_t>;
template class Fennel<std::int32_t, std::uint16_t>;
template class Fennel<std::int64_t, std::uint8_t>;
template class Fennel<std::int64_t, std::uint16_t>;

}  // namespace datapipes
