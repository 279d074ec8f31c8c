#include "partition/even_parts.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/buffer.h"
#include "common/inside.h"
#include "partition/whole_graph.h"

namespace datapipes {
namespace {

constexpr double kTrigger = 0.01;                                        // an excess that is worth a turn
constexpr std::int64_t kFewTurns = 264, kLooks = std::int64_t{1} << 32;  // a turn looks at all nodes

// A measure: its kind, its bound and its loads.
struct Measure {
  enum class Of { kNodes, kEdges, kTraining } of;
  std::size_t type = 0;  // of nodes
  double mean = 0.0;
  std::int64_t bound = 0;
  std::vector<std::int64_t> loads{};  // of each part

  double excess(std::size_t part, std::int64_t more = 0) const {
    return static_cast<double>(std::max<std::int64_t>(loads[part] + more - bound, 0)) / mean;
  }
};

// The edges that a node's move adds to the cut; a count of 2^31 edges or more to one part is clamped.
struct Loss {
  std::int32_t in = 0, out = 0;
  std::int64_t both() const { return std::int64_t{in} + out; }
};

void add_to(std::int32_t& loss, std::int64_t by) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  loss = static_cast<std::int32_t>(std::clamp(loss + by, -kMost, kMost));
}

template <class Id, class Part>
class Evening {
 public:
  Evening(const Topology<Id>& graph, std::span<Part> parts, const EvenRequest& request, const Pulse& pulse)
      : graph_(graph),
        parts_(parts),
        request_(request),
        pace_(pulse),
        num_parts_(static_cast<std::size_t>(request.num_parts)),
        first_(first_nodes(graph)),
        into_(relations_into(graph)) {
    check();
    measure();
  }

  Evened run() {
    Evened found;
    found.before = excesses();
    found.cut_before = cut_;
    most_cut_ = cut_ + std::max(cut_ * 15 / 100, request_.more_cut);
    std::set<std::pair<std::size_t, const Measure*>> left_alone;
    const std::int64_t looks = kLooks / std::max<std::int64_t>(first_.back(), 1);
    for (std::int64_t turns = std::min(4 * request_.num_parts + 8, std::max(looks, kFewTurns)); turns > 0; --turns) {
      const auto worst = largest_excess(left_alone);
      if (!worst) break;
      const auto [from, measure] = *worst;
      const double before = measure->excess(from);
      turn(from, lightest(*measure, from));
      if (measure->excess(from) >= before) left_alone.insert(*worst);
    }
    found.after = excesses();
    found.cut_after = cut_;
    return found;
  }

 private:
  using Queued = std::pair<double, std::int64_t>;  // price, node
  using Queue = std::priority_queue<Queued, std::vector<Queued>, std::greater<>>;

  void check() const {
    const auto refuse = [](const char* what) { throw std::invalid_argument(std::string("Partitioner: ") + what); };
    if (request_.num_parts < 1 || request_.num_parts - 1 > std::numeric_limits<Part>::max())
      refuse("num_parts must be at least 1, and the type of parts must hold it.");
    if (std::ssize(parts_) != first_.back()) refuse("give the part of each node.");
    for (const Part part : parts_)
      if (!is_inside(static_cast<std::int64_t>(part), request_.num_parts)) refuse("the part of a node is not in [0, num_parts).");
    check_training(graph_, request_.training);
  }

  // Calls use(type, row, number) for all nodes.
  template <class Use>
  void each_node(Use&& use) const {
    for (std::size_t type = 0; type + 1 < first_.size(); ++type)
      for (std::int64_t node = first_[type]; node < first_[type + 1]; ++node) use(type, node - first_[type], node);
  }

  std::size_t part_of(std::int64_t node) const { return static_cast<std::size_t>(parts_[static_cast<std::size_t>(node)]); }

  std::size_t type_of(std::int64_t node) const {
    return static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), node) - first_.begin()) - 1;
  }

  // Calls use(source) for each in-edge of a node that is no self-loop.
  template <class Use>
  void each_source(std::size_t type, std::int64_t row, Use&& use) {
    for (const std::size_t number : into_[type]) {
      const auto& relation = graph_.relations[number];
      const auto [begin, end] = check_row(relation, row);
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t source = first_[relation.src] + source_at(relation, at);
        if (source != first_[type] + row) use(source);
      }
      pace_.add(end - begin);
    }
    pace_.add(1);
  }

  std::int64_t degree(std::size_t type, std::int64_t row) const {
    std::int64_t count = 0;
    for (const std::size_t number : into_[type]) {
      const auto [begin, end] = check_row(graph_.relations[number], row);
      count += end - begin;
    }
    return count;
  }

  std::int64_t amount(const Measure& measure, std::size_t type, std::int64_t row) const {
    if (measure.of == Measure::Of::kEdges) return degree(type, row);
    if (measure.of == Measure::Of::kNodes) return type == measure.type;
    const auto& mask = request_.training[type];
    return !mask.empty() && mask[static_cast<std::size_t>(row)] != 0;
  }

  void measure() {
    if (request_.nodes)
      for (std::size_t type = 0; type < graph_.node_types.size(); ++type) measures_.push_back({Measure::Of::kNodes, type});
    if (request_.edges) measures_.push_back({Measure::Of::kEdges});
    measures_.push_back({Measure::Of::kTraining});
    std::erase_if(measures_, [this](Measure& each) { return !load(each); });
    each_node([this](std::size_t type, std::int64_t row, std::int64_t node) {
      each_source(type, row, [&](std::int64_t source) { cut_ += part_of(source) != part_of(node); });
    });
  }

  // Fills in a measure; false if it is 0 for all nodes.
  bool load(Measure& measure) {
    measure.loads.assign(num_parts_, 0);
    std::int64_t total = 0, most = 0;
    each_node([&](std::size_t type, std::int64_t row, std::int64_t node) {
      const std::int64_t has = amount(measure, type, row);
      measure.loads[part_of(node)] += has;
      total += has;
      most = std::max(most, has);
    });
    const std::int64_t parts = request_.num_parts;
    measure.mean = static_cast<double>(total) / static_cast<double>(parts);
    measure.bound = std::max({(total + total / 10) / parts, (total + parts - 1) / parts, most});
    return total > 0;
  }

  Evened::Excess excesses() const {
    Evened::Excess found;
    for (const auto& measure : measures_) {
      double& most = measure.of == Measure::Of::kNodes   ? found.nodes
                     : measure.of == Measure::Of::kEdges ? found.edges
                                                         : found.training;
      for (std::size_t part = 0; part < num_parts_; ++part) most = std::max(most, measure.excess(part));
    }
    return found;
  }

  template <class LeftAlone>
  std::optional<std::pair<std::size_t, const Measure*>> largest_excess(const LeftAlone& left_alone) const {
    std::optional<std::pair<std::size_t, const Measure*>> found;
    double most = kTrigger;
    for (std::size_t part = 0; part < num_parts_; ++part) {
      for (const auto& measure : measures_) {
        if (measure.excess(part) <= most || left_alone.contains({part, &measure})) continue;
        most = measure.excess(part);
        found = {part, &measure};
      }
    }
    return found;
  }

  static std::size_t lightest(const Measure& measure, std::size_t but) {
    std::size_t found = but == 0 ? 1 : 0;
    for (std::size_t part = 0; part < measure.loads.size(); ++part)
      if (part != but && measure.loads[part] < measure.loads[found]) found = part;
    return found;
  }

  void turn(std::size_t from, std::size_t to) {
    if (losses_.size() == 0) losses_ = Buffer<Loss>(first_.back());
    std::fill_n(losses_.data(), losses_.size(), Loss{});
    each_node([&](std::size_t type, std::int64_t row, std::int64_t node) {
      if (part_of(node) == from || part_of(node) == to) count_losses(type, row, node, from, to);
    });
    std::vector<const Measure*> over;
    for (const auto& measure : measures_)
      if (measure.excess(from) > 0.0) over.push_back(&measure);
    const auto price = [&](std::int64_t node) {
      const auto loss = static_cast<double>(losses_[node].both());
      if (loss <= 0.0) return loss;
      const std::size_t type = type_of(node);
      double has = 0.0;
      for (const Measure* const each : over) has += static_cast<double>(amount(*each, type, node - first_[type])) / each->mean;
      return loss / has;
    };
    Queue queue;
    for (std::int64_t node = 0; node < first_.back(); ++node)
      if (part_of(node) == from) queue.emplace(price(node), node);
    std::vector<bool> refused(static_cast<std::size_t>(first_.back()));
    while (!queue.empty()) {
      const auto [was, node] = queue.top();
      queue.pop();
      if (part_of(node) != from || refused[static_cast<std::size_t>(node)] || price(node) != was) continue;
      const bool even = std::ranges::none_of(measures_, [&](const Measure& each) { return each.excess(from) > 0.0; });
      if (even && losses_[node].both() >= 0) break;
      const std::size_t type = type_of(node);
      const std::int64_t row = node - first_[type];
      double less = 0.0;  // excess of both parts
      for (const auto& each : measures_) {
        const std::int64_t has = amount(each, type, row);
        less += each.excess(from) - each.excess(from, -has) + each.excess(to) - each.excess(to, has);
      }
      if (less < 0.0 || (less == 0.0 && losses_[node].both() >= 0)) continue;
      losses_[node].in = 0;
      each_source(type, row, [&](std::int64_t source) { add_to(losses_[node].in, side(source, from, to)); });
      const std::int64_t loss = losses_[node].both();
      if (cut_ + loss > most_cut_) {
        refused[static_cast<std::size_t>(node)] = true;  // so that a hub is not counted repeatedly
        continue;
      }
      for (auto& each : measures_) {
        const std::int64_t has = amount(each, type, row);
        each.loads[from] -= has;
        each.loads[to] += has;
      }
      parts_[static_cast<std::size_t>(node)] = static_cast<Part>(to);
      cut_ += loss;
      each_source(type, row, [&](std::int64_t source) {
        if (part_of(source) != from || refused[static_cast<std::size_t>(source)]) return;
        add_to(losses_[source].out, -2);
        queue.emplace(price(source), source);
      });
    }
  }

  // The share of an edge, between a node of `from` and another node, in the loss of the first.
  std::int64_t side(std::int64_t other, std::size_t from, std::size_t to) const {
    const std::size_t part = part_of(other);
    return part == from ? 1 : part == to ? -1 : 0;
  }

  void count_losses(std::size_t type, std::int64_t row, std::int64_t node, std::size_t from, std::size_t to) {
    const bool gives = part_of(node) == from;
    each_source(type, row, [&](std::int64_t source) {
      if (gives) add_to(losses_[node].in, side(source, from, to));
      if (part_of(source) == from) add_to(losses_[source].out, gives ? 1 : -1);
    });
  }

  const Topology<Id>& graph_;
  std::span<Part> parts_;
  const EvenRequest& request_;
  Pace pace_;
  std::size_t num_parts_;
  std::vector<std::int64_t> first_;             // the number of the first node of each type
  std::vector<std::vector<std::size_t>> into_;  // the relations into each type
  std::vector<Measure> measures_;
  std::int64_t cut_ = 0, most_cut_ = 0;
  Buffer<Loss> losses_;  // of the nodes of `from`
};

}  // namespace

template <class Id, class Part>
Evened even_parts(const Topology<Id>& graph, std::span<Part> parts, const EvenRequest& request, const Pulse& pulse) {
  return Evening<Id, Part>(graph, parts, request, pulse).run();
}

template Evened even_parts(const Topology<std::int32_t>&, std::span<std::uint8_t>, const EvenRequest&, const Pulse&);
template Evened even_parts(const Topology<std::int32_t>&, std::span<std::int16_t>, const EvenRequest&, const Pulse&);
template Evened even_parts(const Topology<std::int64_t>&, std::span<std::uint8_t>, const EvenRequest&, const Pulse&);
template Evened even_parts(const Topology<std::int64_t>&, std::span<std::int16_t>, const EvenRequest&, const Pulse&);

}  // namespace datapipes
