#include "sampling/random_walks.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"
#include "graph/row_view.h"
#include "random/philox.h"
#include "random/stream_words.h"
#include "sampling/sums_search.h"
#include "sampling/walk_steps.h"

namespace datapipes {
namespace {

constexpr std::int64_t kTogether = 64;      // walks that take a step together
constexpr std::int64_t kGroupsPerTurn = 8;  // groups that one thread walks per turn
constexpr std::int64_t kNoNode = -1;

struct InEdges {
  std::int64_t begin = 0, degree = 0;
};

// The first place in [first, last) where `is_there`, which stays true once it is; `last` if there is none. Goes from `guess`, in
// the range, in steps that double, then halves.
template <class IsThere>
std::int64_t first_from(std::int64_t guess, std::int64_t first, std::int64_t last, IsThere&& is_there) {
  if (first == last) return last;
  guess = std::min(guess, last - 1);
  std::int64_t low = first, high = last;  // it is in [low, high]
  if (is_there(guess)) {
    high = guess;
    for (std::int64_t step = 4; high - step >= first; step *= 2) {
      if (!is_there(high - step)) {
        low = high - step + 1;
        break;
      }
      high -= step;
    }
  } else {
    low = guess + 1;
    for (std::int64_t step = 4; low + step < last; step *= 2) {
      if (is_there(low + step)) {
        high = low + step;
        break;
      }
      low += step + 1;
    }
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (is_there(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// A group of walks, and what their next step needs.
template <class Id>
class Group {
 public:
  Group(const Topology<Id>& graph, const WalkRequest<Id>& request)
      : graph_(graph), request_(request), acceptance_(request.p, request.q), width_(std::ssize(request.steps) + 1) {}

  // Walks [first, first + count), from `nodes`; the outputs are those of walk `first`.
  void walk(std::int64_t first, std::int64_t count, Id* nodes, std::int64_t* edge_ids) {
    first_ = first, count_ = count;
    for (std::int64_t i = 0; i < count; ++i) at_[i] = nodes[i * width_];
    if (width_ > 1) prefetch_rows(graph_.relations[request_.steps.front().relation].rows);
    for (std::int64_t t = 0; t + 1 < width_; ++t) {
      const auto& step = request_.steps[static_cast<std::size_t>(t)];
      const Relation<Id>& relation = graph_.relations[step.relation];
      const bool is_plain = acceptance_.is_plain || t == 0;
      const bool takes_a_word = is_plain && !step.sums && step.end_below == 0;
      begin(relation, step, t, takes_a_word);
      if (takes_a_word) {
        draw_by_a_word(relation, step, t);
      } else if (is_plain) {
        for (std::int64_t i = 0; i < count; ++i) open_[i] = i;
        num_open_ = count;
        draw(relation, step);
      } else {
        draw_by_distance(relation, step);
      }
      go(relation, t, nodes, edge_ids);
    }
  }

 private:
  using Step = typename WalkRequest<Id>::Step;
  static constexpr std::int64_t kNone = -1;

  void prefetch_rows(const RowView<Id>& rows) {
    for (std::int64_t i = 0; i < count_; ++i) prefetch_row(rows, at_[i]);
  }
  static void prefetch_row(const RowView<Id>& rows, Id node) {
    if (!is_inside(node, rows.num_rows())) return;
    __builtin_prefetch(&rows.indptr[static_cast<std::size_t>(node)]);
    __builtin_prefetch(&rows.indptr[static_cast<std::size_t>(node) + 1]);
  }

  // Reads the rows of the nodes, and makes the streams of the step; ends walks.
  void begin(const Relation<Id>& relation, const Step& step, std::int64_t t, bool takes_a_word) {
    const RowView<Id>& rows = relation.rows;
    const auto num_edges = std::ssize(rows.indices);
    const std::span<Words> blocks(blocks_.data(), static_cast<std::size_t>(count_));
    first_blocks_of_streams(step.key, static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(first_), blocks);
    for (std::int64_t i = 0; i < count_; ++i) {
      before_row_[i] = row_[i];
      row_[i] = {};
      position_[i] = kNone;
      if (at_[i] == kNoNode) continue;
      const auto node = static_cast<std::size_t>(at_[i]);
      check_node(request_.op.c_str(), at_[i], rows.num_rows());
      const std::int64_t from = rows.indptr[node], to = rows.indptr[node + 1];
      if (!is_range_inside(from, to, num_edges)) throw_bad_indptr(request_.op.c_str(), at_[i], from, to, num_edges);
      row_[i] = {from, to - from};
      if (takes_a_word) continue;
      stream_[i] = Stream(step.key, static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(first_ + i), blocks_[i]);
      if (step.end_below > 0 && stream_[i].word() < step.end_below) row_[i] = {};
    }
    if (!step.sums) return;
    for (std::int64_t i = 0; i < count_; ++i)
      if (row_[i].degree > 0) __builtin_prefetch(&step.sums->sums[static_cast<std::size_t>(row_[i].begin + row_[i].degree - 1)]);
  }

  // Draws an in-edge for each walk as bounded() does; but for a few in 2^32 / degree, by one multiplication.
  void draw_by_a_word(const Relation<Id>& relation, const Step& step, std::int64_t t) {
    const Id* const indices = relation.rows.indices.data();
    for (std::int64_t i = 0; i < count_; ++i) {
      const auto [begin, degree] = row_[i];
      if (degree == 0) continue;
      const std::uint64_t product = std::uint64_t{blocks_[i][0]} * static_cast<std::uint64_t>(degree);
      std::uint64_t offset = product >> 32;
      if (static_cast<std::uint32_t>(product) < static_cast<std::uint64_t>(degree)) {  // perhaps rejected
        Stream stream(step.key, static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(first_ + i), blocks_[i]);
        offset = stream.bounded(static_cast<std::uint64_t>(degree));
      }
      position_[i] = begin + static_cast<std::int64_t>(offset);
      prefetch_edge(relation, indices, position_[i]);
    }
  }

  // Draws an in-edge for each open walk; none if its node has none that can be drawn.
  void draw(const Relation<Id>& relation, const Step& step) {
    const Id* const indices = relation.rows.indices.data();
    if (!step.sums) {
      for (std::int64_t n = 0; n < num_open_; ++n) {
        const std::int64_t i = open_[n];
        if (row_[i].degree == 0) continue;
        position_[i] = row_[i].begin + static_cast<std::int64_t>(stream_[i].bounded(static_cast<std::uint64_t>(row_[i].degree)));
        prefetch_edge(relation, indices, position_[i]);
      }
      return;
    }
    const double* const sums = step.sums->sums.data();
    const double* const coarse = step.sums->coarse.data();
    for (std::int64_t n = 0; n < num_open_; ++n) {
      const std::int64_t i = open_[n];
      const auto [begin, degree] = row_[i];
      line_[i] = kNone;
      if (degree == 0 || !(sums[begin + degree - 1] > 0)) continue;
      const std::uint32_t high = stream_[i].word(), low = stream_[i].word();
      x_[i] = place_of(high, low, sums[begin + degree - 1]);
      // Where the draw falls if all weights of the row are equal.
      const auto offset = static_cast<std::int64_t>(x_[i] / sums[begin + degree - 1] * static_cast<double>(degree));
      line_[i] = (begin + std::min(offset, degree - 1)) / kLineSums;
      __builtin_prefetch(coarse + line_[i]);
    }
    for (std::int64_t n = 0; n < num_open_; ++n) {
      const std::int64_t i = open_[n];
      if (line_[i] == kNone) continue;
      const std::int64_t first = row_[i].begin / kLineSums, last = (row_[i].begin + row_[i].degree - 1) / kLineSums;
      line_[i] = first_from(line_[i], first, last, [&](std::int64_t line) { return coarse[line] > x_[i]; }) * kLineSums;
      __builtin_prefetch(sums + line_[i]);
    }
    for (std::int64_t n = 0; n < num_open_; ++n) {
      const std::int64_t i = open_[n];
      if (line_[i] == kNone) continue;
      position_[i] = in_line(sums, row_[i].begin, row_[i].degree, line_[i], x_[i]);
      prefetch_edge(relation, indices, position_[i]);
    }
  }

  void prefetch_edge(const Relation<Id>& relation, const Id* indices, std::int64_t position) const {
    __builtin_prefetch(indices + position);
    if (request_.want_edge_ids && !relation.edge_ids.empty()) __builtin_prefetch(relation.edge_ids.data() + position);
  }

  // Draws as draw() does, until an in-edge is accepted. A look-up in the sources of the node before begins where the source
  // would be if these were spread evenly over all nodes; that line is prefetched while other walks are decided.
  void draw_by_distance(const Relation<Id>& relation, const Step& step) {
    num_open_ = 0;
    for (std::int64_t i = 0; i < count_; ++i)
      if (row_[i].degree > 0) open_[num_open_++] = i;
    for (int refusals = 0; num_open_ > 0; ++refusals) {
      if (refusals == kMostRefusals) {
        for (std::int64_t n = 0; n < num_open_; ++n) position_[open_[n]] = draw_exactly(relation, step, open_[n]);
        return;
      }
      draw(relation, step);
      std::int64_t still = 0, num_unsure = 0;
      for (std::int64_t n = 0; n < num_open_; ++n) {
        const std::int64_t i = open_[n];
        if (position_[i] == kNone) continue;
        const Id source = relation.rows.indices[static_cast<std::size_t>(position_[i])];
        const std::uint64_t word = stream_[i].word();
        const bool is_back = source == before_[i];
        const bool accepts_near = word < (is_back ? acceptance_.back : acceptance_.near);
        const bool accepts_far = word < (is_back ? acceptance_.back : acceptance_.far);
        open_[still] = i;
        still += static_cast<std::int64_t>(!accepts_near && !accepts_far);
        if (accepts_near == accepts_far) continue;
        const std::int64_t guess = guess_of(i, source, relation.rows.num_sources);
        __builtin_prefetch(&request_.sorted[static_cast<std::size_t>(guess)]);
        unsure_[num_unsure++] = {i, guess, source, accepts_near};
      }
      for (std::int64_t n = 0; n < num_unsure; ++n) {
        const auto& [i, guess, source, accepts_near] = unsure_[n];
        if (is_near(i, source, guess) != accepts_near) open_[still++] = i;
      }
      num_open_ = still;
    }
  }

  // A place in the row of the node before, which has in-edges, near to the one where `source` would be.
  std::int64_t guess_of(std::int64_t i, Id source, std::int64_t num_sources) const {
    const auto [begin, degree] = before_row_[i];
    const double share = (static_cast<double>(source) + 0.5) / static_cast<double>(num_sources);
    return begin + std::clamp<std::int64_t>(static_cast<std::int64_t>(share * static_cast<double>(degree)), 0, degree - 1);
  }

  // Whether an in-edge of the node before comes from `source`.
  bool is_near(std::int64_t i, Id source, std::int64_t guess) const {
    const auto [begin, degree] = before_row_[i];
    const Id* const sources = request_.sorted.data();
    const auto found = first_from(guess, begin, begin + degree, [&](std::int64_t at) { return sources[at] >= source; });
    return found < begin + degree && sources[found] == source;
  }

  // Draws by the weights times the chances of all in-edges.
  std::int64_t draw_exactly(const Relation<Id>& relation, const Step& step, std::int64_t i) {
    const InEdges row = row_[i];
    const double* const sums = step.sums ? step.sums->sums.data() + row.begin : nullptr;
    const auto weight = [&](std::int64_t offset) {
      const Id source = relation.rows.indices[static_cast<std::size_t>(row.begin + offset)];
      const bool is_back = source == before_[i];
      return weight_at(sums, offset) *
             acceptance_.weight(is_back, !is_back && is_near(i, source, guess_of(i, source, relation.rows.num_sources)));
    };
    return row.begin + draw_by_weights(stream_[i], row.degree, sums_, weight);
  }

  // Takes the step, and prefetches the rows of the next.
  void go(const Relation<Id>& relation, std::int64_t t, Id* nodes, std::int64_t* edge_ids) {
    const RowView<Id>& rows = relation.rows;
    const bool is_last = t + 2 == width_;
    const RowView<Id>* next =
        is_last ? nullptr : &graph_.relations[request_.steps[static_cast<std::size_t>(t + 1)].relation].rows;
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t position = position_[i];
      before_[i] = at_[i];
      Id source = kNoNode;
      if (position != kNone) {
        source = rows.indices[static_cast<std::size_t>(position)];
        if (!is_inside(source, rows.num_sources)) throw_bad_neighbor(request_.op.c_str(), position, source, rows.num_sources);
      }
      at_[i] = source;
      nodes[i * width_ + t + 1] = source;
      if (next != nullptr) prefetch_row(*next, source);
      if (edge_ids == nullptr) continue;
      const bool has_ids = position != kNone && !relation.edge_ids.empty();
      edge_ids[i * (width_ - 1) + t] = has_ids ? relation.edge_ids[static_cast<std::size_t>(position)] : position;
    }
  }

  const Topology<Id>& graph_;
  const WalkRequest<Id>& request_;
  const Acceptance acceptance_;
  const std::int64_t width_;
  std::int64_t first_ = 0, count_ = 0, num_open_ = 0;
  // Of each walk:
  template <class Value>
  using Each = std::array<Value, kTogether>;
  Each<Id> at_{}, before_{};
  Each<InEdges> row_{}, before_row_{};
  Each<std::int64_t> position_{}, line_{};
  Each<double> x_{};
  Each<Words> blocks_{};
  std::vector<Stream> stream_{kTogether, Stream(0, 0)};
  Each<std::int64_t> open_{};  // the first num_open_: walks whose in-edge is not drawn yet
  struct LookUp {
    std::int64_t walk, guess;
    Id source;
    bool accepts_near;
  };
  Each<LookUp> unsure_{};
  std::vector<double> sums_;
};

template <class Id>
void check(const Topology<Id>& graph, const WalkRequest<Id>& request) {
  const bool is_plain = request.p == 1 && request.q == 1;
  for (std::size_t t = 0; t < request.steps.size(); ++t) {
    const auto& step = request.steps[t];
    if (step.relation >= graph.relations.size()) throw std::invalid_argument("a step has no relation of the graph.");
    if (t > 0 && graph.relations[request.steps[t - 1].relation].src != graph.relations[step.relation].dst)
      throw std::invalid_argument("a step does not begin at the type where the step before ends.");
    const RowView<Id>& rows = graph.relations[step.relation].rows;
    check_chances(request.p, request.q, step.end_below);
    if (step.sums) check_row_sums(*step.sums, rows.num_rows(), std::ssize(rows.indices));
    if (!is_plain && request.steps.size() > 1 &&
        (step.relation != request.steps.front().relation || request.sorted.size() != rows.indices.size()))
      throw std::invalid_argument("p and q need one relation, and its sources in ascending order.");
  }
  check_chances(request.p, request.q, 0);
}

}  // namespace

template <class Id>
Walks<Id> random_walks(const Topology<Id>& graph, std::span<const std::int64_t> seeds, const WalkRequest<Id>& request) {
  check(graph, request);
  const std::int64_t num_seeds = std::ssize(seeds), most = std::int64_t{1} << 32;
  if (request.walks_per_node < 1 || (num_seeds > 0 && request.walks_per_node > most / num_seeds))
    throw std::length_error(request.op + ": " + std::to_string(num_seeds) + " seeds with " +
                            std::to_string(request.walks_per_node) +
                            " walks each; at least 1 each, and at most 2^32 in all, can be drawn. Use fewer.");
  const std::int64_t num_walks = num_seeds * request.walks_per_node, length = std::ssize(request.steps);
  Walks<Id> walks{Buffer<Id>(num_walks * (length + 1)), Buffer<std::int64_t>(request.want_edge_ids ? num_walks * length : 0)};
  const std::int64_t num_nodes =
      length == 0 ? std::numeric_limits<Id>::max() : graph.relations[request.steps.front().relation].rows.num_rows();
  for (std::int64_t place = 0; place < num_seeds; ++place) {
    const std::int64_t seed = read_once(seeds[static_cast<std::size_t>(place)]);
    check_node(request.op.c_str(), seed, num_nodes);
    for (std::int64_t j = 0; j < request.walks_per_node; ++j)
      walks.nodes[(place * request.walks_per_node + j) * (length + 1)] = static_cast<Id>(seed);
  }
  in_turns(num_walks, kTogether * kGroupsPerTurn, request.threads, [&](std::int64_t begin, std::int64_t end) {
    Group<Id> group(graph, request);
    for (std::int64_t first = begin; first < end; first += kTogether)
      group.walk(first, std::min(kTogether, end - first), walks.nodes.data() + first * (length + 1),
                 request.want_edge_ids ? walks.edge_ids.data() + first * length : nullptr);
  });
  return walks;
}

template <class Id>
Buffer<Id> sorted_sources(const char* op, const RowView<Id>& rows, int threads) {
  constexpr std::int64_t kRowsPerTurn = 4096;
  const auto num_edges = std::ssize(rows.indices);
  Buffer<Id> sorted(num_edges);
  std::copy(rows.indices.begin(), rows.indices.end(), sorted.data());
  in_turns(rows.num_rows(), kRowsPerTurn, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t from = rows.indptr[static_cast<std::size_t>(row)], to = rows.indptr[static_cast<std::size_t>(row) + 1];
      if (!is_range_inside(from, to, num_edges)) throw_bad_indptr(op, row, from, to, num_edges);
      if (!std::is_sorted(sorted.data() + from, sorted.data() + to)) std::sort(sorted.data() + from, sorted.data() + to);
    }
  });
  return sorted;
}

template Walks<std::int32_t> random_walks(const Topology<std::int32_t>&, std::span<const std::int64_t>,
                                          const WalkRequest<std::int32_t>&);
template Walks<std::int64_t> random_walks(const Topology<std::int64_t>&, std::span<const std::int64_t>,
                                          const WalkRequest<std::int64_t>&);
template Buffer<std::int32_t> sorted_sources(const char*, const RowView<std::int32_t>&, int);
template Buffer<std::int64_t> sorted_sources(const char*, const RowView<std::int64_t>&, int);

}  // namespace datapipes
