#include "sampling/ppr.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::uint64_t kWhole = std::uint64_t{1} << 62;
constexpr std::int64_t kSeedsPerTurn = 4;   // of a thread
constexpr std::int64_t kSeedsAtOnce = 128;  // over parts; each takes about a megabyte
constexpr std::int64_t kAhead = 16;         // in-edges whose slots are prefetched
constexpr std::size_t kRowsAhead = 32;      // nodes whose offsets are
constexpr std::size_t kDueAhead = 4;        // nodes whose in-edges are

void check_options(const PprOptions& options) {
  if (options.keep < 1 || options.keep > std::uint64_t{1} << 32 || options.eps < std::uint64_t{1} << 22 || options.eps > kWhole ||
      options.count < 1)
    throw std::invalid_argument("keep must be in [1, 2^32], eps in [2^22, 2^62], and count at least 1.");
}

// The in-edges of a node, if it is due: its residual is at least eps for each, and for one if it has none; or it is a seed
// that has all of the mass.
template <class Id>
struct Row {
  enum { kIsDue, kIsNotDue, kIsUnknown } state;
  const Id* sources = nullptr;
  std::int64_t degree = 0;
};

template <class Id>
void prefetch_row(const Row<Id>& row) {
  constexpr auto kIdsOfLine = static_cast<std::int64_t>(64 / sizeof(Id));
  for (std::int64_t i = 0; i < std::min(row.degree, 8 * kIdsOfLine); i += kIdsOfLine) __builtin_prefetch(row.sources + i);
}

bool is_due(std::uint64_t residual, std::int64_t degree, std::uint64_t eps) {
  const auto least = static_cast<unsigned __int128>(eps) * static_cast<std::uint64_t>(std::max<std::int64_t>(degree, 1));
  return least <= residual || residual == kWhole;
}

// The mass of one seed. The memory serves the next seed again.
class Push {
 public:
  void start(std::int64_t seed) {
    clear_slots(std::max<std::size_t>(2 * entries_.size(), 1024));  // as the seed before needed
    entries_.clear();
    touched_.clear();
    kept_.clear();
    round_ = 1;
    add(seed, kWhole, 0);
  }

  // Pushes until no node is due. Returns false if a row is unknown; the next call goes on from there.
  // rows.row(node, residual): the Row of a node, which rows.prefetch(node) has announced; rows.source(row, i): an in-edge's.
  template <class Rows>
  bool advance(Rows& rows, const PprOptions& options, std::int64_t& num_edges) {
    std::vector<Due<typename Rows::Id>> due;
    while (!touched_.empty()) {
      due.clear();
      bool is_complete = true;
      for (std::size_t i = 0; i < touched_.size(); ++i) {
        if (i + kRowsAhead < touched_.size()) rows.prefetch(entries_[touched_[i + kRowsAhead]].node);
        const auto row = rows.row(entries_[touched_[i]].node, entries_[touched_[i]].residual);
        if (row.state == row.kIsDue) due.push_back({touched_[i], row, 0});
        is_complete &= row.state != row.kIsUnknown;
      }
      if (!is_complete) return false;
      touched_.clear();
      ++round_;
      for (auto& [number, row, share] : due) {  // all take their residual before any gives a share
        Entry& entry = entries_[number];
        if (entry.mass == 0) kept_.push_back(number);
        std::uint64_t kept = entry.residual;
        if (row.degree > 0) {
          kept = static_cast<std::uint64_t>((static_cast<unsigned __int128>(entry.residual) * options.keep) >> 32);
          share = (entry.residual - kept) / static_cast<std::uint64_t>(row.degree);
        }
        entry.mass += kept;
        entry.residual -= kept + share * static_cast<std::uint64_t>(row.degree);
      }
      for (std::size_t d = 0; d < due.size(); ++d) {
        if (d + kDueAhead < due.size()) prefetch_row(due[d + kDueAhead].row);
        const auto& [number, row, share] = due[d];
        if (share == 0) continue;
        reserve(static_cast<std::size_t>(row.degree));
        num_edges += row.degree;
        for (std::int64_t i = 0; i < row.degree; ++i) {
          if (i + kAhead < row.degree) __builtin_prefetch(&slots_[home(row.sources[i + kAhead])]);
          add(rows.source(row, i), share, options.eps);
        }
      }
    }
    return true;
  }

  template <class Id>
  void largest(std::int64_t count, Id* ids, std::uint64_t* masses) {
    const auto most = std::min(count, std::ssize(kept_));
    const auto is_before = [&](std::uint32_t a, std::uint32_t b) {
      const Entry &left = entries_[a], &right = entries_[b];
      return left.mass != right.mass ? left.mass > right.mass : left.node < right.node;
    };
    std::partial_sort(kept_.begin(), kept_.begin() + most, kept_.end(), is_before);
    for (std::int64_t i = 0; i < count; ++i) {
      ids[i] = i < most ? static_cast<Id>(entries_[kept_[static_cast<std::size_t>(i)]].node) : Id{-1};
      masses[i] = i < most ? entries_[kept_[static_cast<std::size_t>(i)]].mass : 0;
    }
  }

 private:
  struct Entry {
    std::int64_t node;
    std::uint64_t residual, mass;
    std::uint32_t round;  // in which it last joined touched_
  };
  template <class Id>
  struct Due {
    std::uint32_t entry;
    Row<Id> row;
    std::uint64_t share;
  };

  struct Slot {
    std::uint32_t number = 0;  // 1 + that of an entry; 0: empty
    std::uint32_t low = 0;     // bits of its node, so that few other entries are read
  };

  std::size_t home(std::int64_t node) const { return (static_cast<std::uint64_t>(node) * 0x9E3779B97F4A7C15u) >> shift_; }
  // The slot that has a node, or else the empty one where it belongs.
  std::size_t slot_of(std::int64_t node) const {
    std::size_t slot = home(node);
    const auto low = static_cast<std::uint32_t>(node);
    while (slots_[slot].number != 0 && (slots_[slot].low != low || entries_[slots_[slot].number - 1].node != node))
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }
  void clear_slots(std::size_t count) {
    slots_.assign(std::bit_ceil(count), {});
    shift_ = 64 - std::countr_zero(slots_.size());
  }
  void reserve(std::size_t more) {
    const std::size_t wanted = 2 * (entries_.size() + more);
    if (wanted <= slots_.size()) return;
    clear_slots(wanted);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      slots_[slot_of(entries_[i].node)] = {static_cast<std::uint32_t>(i + 1), static_cast<std::uint32_t>(entries_[i].node)};
  }
  void add(std::int64_t node, std::uint64_t share, std::uint64_t eps) {
    Slot& slot = slots_[slot_of(node)];
    if (slot.number == 0) {
      entries_.push_back({node, 0, 0, 0});
      slot = {static_cast<std::uint32_t>(entries_.size()), static_cast<std::uint32_t>(node)};
    }
    Entry& entry = entries_[slot.number - 1];
    entry.residual += share;
    if (entry.residual < eps || entry.round == round_) return;
    entry.round = round_;
    touched_.push_back(slot.number - 1);
  }

  std::vector<Slot> slots_;  // at most half are full
  int shift_ = 0;            // from a hash to a slot
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> touched_;  // numbers of entries that have become larger, and may be due
  std::vector<std::uint32_t> kept_;     // of entries with mass
  std::uint32_t round_ = 0;
};

template <class Number>
struct GraphRows {
  using Id = Number;
  const char* op;
  const RowView<Id>& graph;
  std::uint64_t eps;

  void prefetch(std::int64_t node) const { __builtin_prefetch(&graph.indptr[static_cast<std::size_t>(node)]); }
  Row<Id> row(std::int64_t node, std::uint64_t residual) const {
    const std::int64_t begin = graph.indptr[static_cast<std::size_t>(node)],
                       end = graph.indptr[static_cast<std::size_t>(node) + 1];
    if (!is_range_inside(begin, end, std::ssize(graph.indices)))
      throw_bad_indptr(op, node, begin, end, std::ssize(graph.indices));
    if (!is_due(residual, end - begin, eps)) return {Row<Id>::kIsNotDue};
    return {Row<Id>::kIsDue, graph.indices.data() + begin, end - begin};
  }
  std::int64_t source(const Row<Id>& row, std::int64_t i) const {
    const Id source = read_once(row.sources[i]);
    if (!is_inside(source, graph.num_rows()))
      throw_bad_neighbor(op, row.sources + i - graph.indices.data(), source, graph.num_rows());
    return source;
  }
};

[[gnu::noinline]] Push& push_of_thread() {  // inline, its address would be asked for at each use
  thread_local Push push;
  return push;
}

}  // namespace

template <class Id>
PprNodes<Id> ppr_of_graph(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> seeds,
                          const PprOptions& options, int threads) {
  check_options(options);
  for (const std::int64_t seed : seeds) check_node(op, seed, graph.num_rows());
  const std::int64_t count = options.count;
  PprNodes<Id> found{Buffer<Id>(std::ssize(seeds) * count), Buffer<std::uint64_t>(std::ssize(seeds) * count), 0};
  std::atomic<std::int64_t> num_edges{0};
  in_turns(std::ssize(seeds), kSeedsPerTurn, threads, [&](std::int64_t begin, std::int64_t end) {
    Push& push = push_of_thread();
    GraphRows<Id> rows{op, graph, options.eps};
    std::int64_t pushed = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      push.start(seeds[static_cast<std::size_t>(i)]);
      push.advance(rows, options, pushed);
      push.largest(count, found.ids.data() + i * count, found.masses.data() + i * count);
    }
    num_edges += pushed;
  });
  found.num_edges = num_edges;
  return found;
}

struct PprOverParts::State {
  using Id = std::int64_t;
  struct Known {
    std::int64_t degree, begin;  // begin: of its sources; kNotHere: they were not needed so far
  };
  struct Active {
    Push push;
    std::int64_t seed;  // its place
  };
  static constexpr std::int64_t kNotHere = -1;

  PprOptions options;
  std::int64_t num_nodes;
  std::vector<std::int64_t> seeds = {};
  std::size_t num_started = 0;
  std::vector<Active> active = {};
  std::unordered_map<std::int64_t, Known> known = {};
  std::vector<std::int64_t> sources = {};
  std::unordered_map<std::int64_t, std::int64_t> asked = {};  // node -> the largest in-degree with which it is due
  PprNodes<std::int64_t> found = {};

  void prefetch(std::int64_t) const {}
  Row<Id> row(std::int64_t node, std::uint64_t residual) {
    const auto at = known.find(node);
    if (at != known.end() && !is_due(residual, at->second.degree, options.eps)) return {Row<Id>::kIsNotDue};
    if (at != known.end() && at->second.begin != kNotHere)
      return {Row<Id>::kIsDue, sources.data() + at->second.begin, at->second.degree};
    std::int64_t& most = asked[node];
    const std::uint64_t degree = residual == kWhole ? std::numeric_limits<std::int64_t>::max() : residual / options.eps;
    most = std::max(most, static_cast<std::int64_t>(degree));
    return {Row<Id>::kIsUnknown};
  }
  std::int64_t source(const Row<Id>& row, std::int64_t i) const { return row.sources[i]; }

  void start_next(Active& one) {
    one.seed = static_cast<std::int64_t>(num_started++);
    one.push.start(seeds[static_cast<std::size_t>(one.seed)]);
  }
};

PprOverParts::PprOverParts(std::span<const std::int64_t> seeds, std::int64_t num_nodes, const PprOptions& options)
    : state_(new State{.options = options, .num_nodes = num_nodes}) {
  check_options(options);
  for (const std::int64_t seed : seeds) check_node("sample_ppr", seed, num_nodes);
  state_->seeds.assign(seeds.begin(), seeds.end());
  const auto count = std::ssize(seeds) * options.count;
  state_->found = {Buffer<std::int64_t>(count), Buffer<std::uint64_t>(count), 0};
  state_->active.resize(static_cast<std::size_t>(std::min(std::ssize(seeds), kSeedsAtOnce)));
  for (auto& one : state_->active) state_->start_next(one);
}
PprOverParts::~PprOverParts() = default;

std::pair<Buffer<std::int64_t>, Buffer<std::int64_t>> PprOverParts::wanted() {
  State& state = *state_;
  const std::int64_t count = state.options.count;
  state.asked.clear();
  std::erase_if(state.active, [&](State::Active& one) {
    while (one.push.advance(state, state.options, state.found.num_edges)) {
      one.push.largest(count, state.found.ids.data() + one.seed * count, state.found.masses.data() + one.seed * count);
      if (state.num_started == state.seeds.size()) return true;
      state.start_next(one);
    }
    return false;
  });
  Buffer<std::int64_t> nodes(std::ssize(state.asked)), most(std::ssize(state.asked));
  std::int64_t i = 0;
  for (const auto& [node, degree] : state.asked) nodes[i] = node, most[i++] = degree;
  return {std::move(nodes), std::move(most)};
}

void PprOverParts::give(std::span<const std::int64_t> nodes, std::span<const std::int64_t> degrees,
                        std::span<const std::int64_t> sources) {
  State& state = *state_;
  if (nodes.size() != degrees.size()) throw std::invalid_argument("give one degree for each node.");
  std::int64_t at = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto asked = state.asked.find(nodes[i]);
    const bool is_here = asked != state.asked.end() && degrees[i] <= asked->second;
    if (asked == state.asked.end() || degrees[i] < 0 || (is_here && degrees[i] > std::ssize(sources) - at))
      throw std::invalid_argument("the rows are not those that were asked for.");
    state.known[nodes[i]] = {degrees[i], is_here ? std::ssize(state.sources) : State::kNotHere};
    if (!is_here) continue;
    for (const std::int64_t source : sources.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(degrees[i]))) {
      if (!is_inside(source, state.num_nodes)) throw_bad_neighbor("sample_ppr", at, source, state.num_nodes);
      state.sources.push_back(source);
    }
    at += degrees[i];
  }
  if (at != std::ssize(sources)) throw std::invalid_argument("the rows are not those that were asked for.");
}

PprNodes<std::int64_t> PprOverParts::largest() { return std::move(state_->found); }

template PprNodes<std::int32_t> ppr_of_graph(const char*, const RowView<std::int32_t>&, std::span<const std::int64_t>,
                                             const PprOptions&, int);
template PprNodes<std::int64_t> ppr_of_graph(const char*, const RowView<std::int64_t>&, std::span<const std::int64_t>,
                                             const PprOptions&, int);

}  // namespace datapipes
