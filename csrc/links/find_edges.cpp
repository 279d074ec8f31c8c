#include "links/find_edges.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <vector>

#include "common/load.h"

namespace datapipes {
namespace {

constexpr const char* kOp = "has_edges";
constexpr std::int64_t kLongRow = 256;  // in-edges; a shorter row is read for each pair
constexpr std::size_t kAtOnce = 32;     // pairs that wait for memory together
constexpr std::size_t kFilterBits = std::size_t{1} << 14;

struct Range {
  std::int64_t begin, end;
};

// The pairs of one long row, by source.
struct Wanted {
  std::int64_t row, source;
  std::size_t pair;
  bool operator<(const Wanted& other) const {
    return row != other.row ? row < other.row : source != other.source ? source < other.source : pair < other.pair;
  }
};

template <class Id>
class Finder {
 public:
  Finder(const RowView<Id>& graph, std::span<const std::int64_t> rows, std::span<const std::int64_t> sources)
      : graph_(graph), rows_(rows), sources_(sources) {
    if (rows.size() != sources.size()) throw std::invalid_argument("has_edges: give one source for each row.");
    found_.counts = Buffer<std::int64_t>(std::ssize(rows));
    found_.firsts = Buffer<std::int64_t>(std::ssize(rows));
  }

  FoundEdges run() {
    for (std::size_t first = 0; first < rows_.size(); first += kAtOnce)
      read_short(first, std::min(kAtOnce, rows_.size() - first));
    std::sort(long_.begin(), long_.end());
    for (auto from = long_.cbegin(); from != long_.cend();) {
      const auto to = std::find_if(from, long_.cend(), [&](const Wanted& each) { return each.row != from->row; });
      read_long({&*from, static_cast<std::size_t>(to - from)});
      from = to;
    }
    return std::move(found_);
  }

 private:
  Range range_of(std::int64_t row) const {
    const std::int64_t begin = graph_.indptr[static_cast<std::size_t>(row)],
                       end = graph_.indptr[static_cast<std::size_t>(row) + 1];
    if (!is_range_inside(begin, end, std::ssize(graph_.indices)))
      throw_bad_indptr(kOp, static_cast<std::int64_t>(graph_.node_of(row)), begin, end, std::ssize(graph_.indices));
    return {begin, end};
  }

  // Reads the rows of some pairs, in passes; each pass prefetches the input of the next. Long rows are put aside.
  void read_short(std::size_t first, std::size_t count) {
    std::array<std::int64_t, kAtOnce> rows, sources;  // read once, so that the checked values are used
    std::array<Range, kAtOnce> ranges;
    for (std::size_t i = 0; i < count; ++i) {
      rows[i] = read_once(rows_[first + i]);
      sources[i] = read_once(sources_[first + i]);
      check_node(kOp, rows[i], graph_.num_rows());
      check_node(kOp, sources[i], graph_.num_sources);
      __builtin_prefetch(&graph_.indptr[static_cast<std::size_t>(rows[i])]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      ranges[i] = range_of(rows[i]);
      const Id* const indices = graph_.indices.data() + ranges[i].begin;
      const std::int64_t bytes = (ranges[i].end - ranges[i].begin) * static_cast<std::int64_t>(sizeof(Id));
      for (std::int64_t at = 0; at < std::min<std::int64_t>(bytes, 256); at += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(indices) + at);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (ranges[i].end - ranges[i].begin > kLongRow) {
        long_.push_back({rows[i], sources[i], first + i});
        continue;
      }
      std::int64_t times = 0, at = -1;
      for (std::int64_t p = ranges[i].end - 1; p >= ranges[i].begin; --p) {
        const bool same = static_cast<std::int64_t>(graph_.indices[static_cast<std::size_t>(p)]) == sources[i];
        times += static_cast<std::int64_t>(same);
        at = same ? p : at;
      }
      set(first + i, times, at);
    }
  }

  // Reads one row for all its pairs. A filter of bits rules out most in-edges.
  void read_long(std::span<const Wanted> wanted) {
    std::vector<std::int64_t> sources;  // distinct, ascending
    filter_.reset();
    for (const Wanted& each : wanted) {
      if (!sources.empty() && sources.back() == each.source) continue;
      sources.push_back(each.source);
      filter_.set(static_cast<std::size_t>(each.source) % kFilterBits);
    }
    std::vector<std::int64_t> counts(sources.size(), 0), firsts(sources.size(), -1);
    const Range range = range_of(wanted[0].row);
    for (std::int64_t p = range.begin; p < range.end; ++p) {
      const auto source = static_cast<std::int64_t>(graph_.indices[static_cast<std::size_t>(p)]);
      if (!filter_.test(static_cast<std::size_t>(source) % kFilterBits)) continue;
      const auto place = std::lower_bound(sources.begin(), sources.end(), source) - sources.begin();
      const auto at = static_cast<std::size_t>(place);
      if (at == sources.size() || sources[at] != source) continue;
      if (counts[at]++ == 0) firsts[at] = p;
    }
    std::size_t at = 0;
    for (const Wanted& each : wanted) {
      while (sources[at] != each.source) ++at;
      set(each.pair, counts[at], firsts[at]);
    }
  }

  void set(std::size_t pair, std::int64_t count, std::int64_t first) {
    found_.counts[static_cast<std::int64_t>(pair)] = count;
    found_.firsts[static_cast<std::int64_t>(pair)] = first;
  }

  const RowView<Id>& graph_;
  std::span<const std::int64_t> rows_, sources_;
  std::vector<Wanted> long_;
  std::bitset<kFilterBits> filter_;
  FoundEdges found_;
};

}  // namespace

template <class Id>
FoundEdges find_edges(const RowView<Id>& graph, std::span<const std::int64_t> rows, std::span<const std::int64_t> sources) {
  return Finder<Id>(graph, rows, sources).run();
}

template FoundEdges find_edges<std::int32_t>(const RowView<std::int32_t>&, std::span<const std::int64_t>,
                                             std::span<const std::int64_t>);
template FoundEdges find_edges<std::int64_t>(const RowView<std::int64_t>&, std::span<const std::int64_t>,
                                             std::span<const std::int64_t>);

}  // namespace datapipes
