#include "sampling/walk_steps.h"

#include "common/inside.h"
#include "common/load.h"

namespace datapipes {
namespace {

constexpr std::int64_t kMostWalkers = std::int64_t{1} << 32;

Stream stream_of(const WalkStep& step, std::int64_t walker) {
  if (!is_inside(walker, kMostWalkers))
    throw std::invalid_argument("a walk has the number " + std::to_string(walker) + "; it must be in [0, 2^32).");
  return {step.key, step.number, static_cast<std::uint32_t>(walker)};
}

// Draws one of `degree` in-edges: by their running sums, or each equally likely.
std::int64_t draw(Stream& stream, const double* sums, std::int64_t degree) {
  if (sums == nullptr) return static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(degree)));
  const std::uint32_t high = stream.word(), low = stream.word();
  const auto found = std::upper_bound(sums, sums + degree, place_of(high, low, sums[degree - 1])) - sums;
  return found == degree ? last_drawable(sums, 0, degree) : found;
}

void check_step(std::size_t walkers, std::size_t before, std::size_t rows, const WalkStep& step) {
  if (walkers != rows || before != rows) throw std::invalid_argument("give one walker and one node before for each row.");
  check_chances(step.p, step.q, step.end_below);
}

template <class Id>
class Rows {
 public:
  Rows(const char* op, const RowView<Id>& graph, const std::optional<RowSums>& sums) : op_(op), graph_(graph), sums_(sums) {
    if (sums) check_row_sums(*sums, graph.num_rows(), std::ssize(graph.indices));
  }
  struct Row {
    std::int64_t begin, degree;
    const double* sums;  // null without weights
  };
  Row at(const std::int64_t& given) const {
    const std::int64_t row = read_once(given);
    check_node(op_, row, graph_.num_rows());
    const std::int64_t begin = graph_.indptr[static_cast<std::size_t>(row)],
                       end = graph_.indptr[static_cast<std::size_t>(row) + 1];
    if (!is_range_inside(begin, end, std::ssize(graph_.indices)))
      throw_bad_indptr(op_, row, begin, end, std::ssize(graph_.indices));
    return {begin, end - begin, sums_ ? sums_->sums.data() + begin : nullptr};
  }
  Id source(std::int64_t position) const {
    const Id source = graph_.indices[static_cast<std::size_t>(position)];
    if (!is_inside(source, graph_.num_sources)) throw_bad_neighbor(op_, position, source, graph_.num_sources);
    return source;
  }

 private:
  const char* op_;
  const RowView<Id>& graph_;
  const std::optional<RowSums>& sums_;
};

}  // namespace

template <class Id>
DrawnSteps<Id> draw_steps(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> walkers, std::span<const std::int64_t> before, const WalkStep& step,
                          const std::optional<RowSums>& sums) {
  check_step(walkers.size(), before.size(), rows.size(), step);
  const Rows<Id> graph_rows(op, graph, sums);
  const Acceptance acceptance(step.p, step.q);
  Buffer<std::int64_t> counts(std::ssize(rows));
  std::vector<std::int64_t> positions;
  std::vector<std::uint8_t> kinds;
  std::vector<double> scratch;
  const auto add = [&](std::int64_t position, StepKind kind) {
    positions.push_back(position);
    kinds.push_back(static_cast<std::uint8_t>(kind));
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t first = positions.size();
    const auto row = graph_rows.at(rows[i]);
    Stream stream = stream_of(step, walkers[i]);
    const bool ends = step.end_below > 0 && stream.word() < step.end_below;
    const auto is_back = [&](std::int64_t at) { return graph_rows.source(row.begin + at) == before[i]; };
    if (!ends && row.degree > 0 && (row.sums == nullptr || row.sums[row.degree - 1] > 0)) {
      bool is_sure = acceptance.is_plain || before[i] < 0;
      if (is_sure) add(row.begin + draw(stream, row.sums, row.degree), StepKind::kSure);
      for (int refusals = 0; !is_sure && refusals < kMostRefusals; ++refusals) {
        const std::int64_t at = draw(stream, row.sums, row.degree);
        const std::uint64_t word = stream.word();
        const bool back = is_back(at), near = word < (back ? acceptance.back : acceptance.near);
        const bool far = word < (back ? acceptance.back : acceptance.far);
        is_sure = near && far;
        if (near || far) add(row.begin + at, is_sure ? StepKind::kSure : near ? StepKind::kIfNear : StepKind::kIfFar);
      }
      if (!is_sure && acceptance.knows_without_near()) {
        const auto weight = [&](std::int64_t at) { return weight_at(row.sums, at) * acceptance.weight(is_back(at), true); };
        add(row.begin + draw_by_weights(stream, row.degree, scratch, weight), StepKind::kSure);
      } else if (!is_sure) {
        add(row.begin, StepKind::kOpen);
      }
    }
    counts[static_cast<std::int64_t>(i)] = static_cast<std::int64_t>(positions.size() - first);
  }
  const auto count = std::ssize(positions);
  DrawnSteps<Id> drawn{std::move(counts), Buffer<Id>(count), Buffer<std::int64_t>(count), Buffer<std::uint8_t>(count), {}};
  for (std::int64_t at = 0; at < count; ++at) {
    drawn.positions[at] = positions[static_cast<std::size_t>(at)];
    drawn.sources[at] = graph_rows.source(drawn.positions[at]);
    drawn.kinds[at] = kinds[static_cast<std::size_t>(at)];
  }
  return drawn;
}

template <class Id>
DrawnSteps<Id> whole_rows(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> most, const std::optional<RowSums>& sums) {
  if (!most.empty() && most.size() != rows.size()) throw std::invalid_argument("give one of most for each row, or none.");
  const auto is_sent = [&](std::size_t i, std::int64_t degree) { return most.empty() || degree <= most[i]; };
  const Rows<Id> graph_rows(op, graph, sums);
  DrawnSteps<Id> drawn{Buffer<std::int64_t>(std::ssize(rows)), {}, {}, {}, {}};
  std::int64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t degree = drawn.counts[static_cast<std::int64_t>(i)] = graph_rows.at(rows[i]).degree;
    if (is_sent(i, degree)) total += degree;
  }
  drawn.sources = Buffer<Id>(total);
  drawn.positions = Buffer<std::int64_t>(total);
  drawn.sums = Buffer<double>(sums ? total : 0);
  std::int64_t to = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = graph_rows.at(rows[i]);
    if (row.degree != drawn.counts[static_cast<std::int64_t>(i)])
      throw std::invalid_argument("the rows change while they are read. Leave the graph as it is.");
    if (!is_sent(i, row.degree)) continue;
    for (std::int64_t at = 0; at < row.degree; ++at, ++to) {
      drawn.positions[to] = row.begin + at;
      drawn.sources[to] = graph_rows.source(row.begin + at);
      if (sums) drawn.sums[to] = row.sums[at];
    }
  }
  return drawn;
}

namespace {

bool are_sums(std::span<const double> sums) {
  double before = 0;
  for (const double sum : sums) {
    if (!(sum >= before) || !std::isfinite(sum)) return false;
    before = sum;
  }
  return before > 0;
}

}  // namespace

Buffer<std::int64_t> chosen_in_rows(std::span<const std::int64_t> counts, std::span<const std::int64_t> sources,
                                    std::span<const double> sums, std::span<const std::uint8_t> near,
                                    std::span<const std::int64_t> walkers, std::span<const std::int64_t> before,
                                    const WalkStep& step) {
  check_step(walkers.size(), before.size(), counts.size(), step);
  if (near.size() != sources.size() || (!sums.empty() && sums.size() != sources.size()))
    throw std::invalid_argument("give one of near, and with weights one sum, for each in-edge.");
  const Acceptance acceptance(step.p, step.q);
  std::vector<double> scratch;
  const auto choose = [&](std::size_t i, std::size_t begin, std::size_t count) {
    if (count == 0) throw std::invalid_argument("a walk that goes on has a row without in-edges.");
    const double* const of_row = sums.empty() ? nullptr : sums.data() + begin;
    if (!sums.empty() && !are_sums(sums.subspan(begin, count)))
      throw std::invalid_argument("a row has sums that no weights have.");
    Stream stream = stream_of(step, walkers[i]);
    if (step.end_below > 0) stream.word();
    const auto degree = static_cast<std::int64_t>(count);
    const auto is_back = [&](std::int64_t at) { return sources[begin + static_cast<std::size_t>(at)] == before[i]; };
    const auto is_near = [&](std::int64_t at) { return near[begin + static_cast<std::size_t>(at)] != 0; };
    for (int refusals = 0; refusals < kMostRefusals; ++refusals) {
      const std::int64_t at = draw(stream, of_row, degree);
      const std::uint64_t limit = is_back(at) ? acceptance.back : is_near(at) ? acceptance.near : acceptance.far;
      if (stream.word() < limit) return static_cast<std::int64_t>(begin) + at;
    }
    const auto weight = [&](std::int64_t at) { return weight_at(of_row, at) * acceptance.weight(is_back(at), is_near(at)); };
    return static_cast<std::int64_t>(begin) + draw_by_weights(stream, degree, scratch, weight);
  };
  Buffer<std::int64_t> chosen(std::ssize(counts));
  std::size_t begin = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || static_cast<std::size_t>(counts[i]) > sources.size() - begin)
      throw std::invalid_argument("the counts of the walks do not add up to the in-edges.");
    chosen[static_cast<std::int64_t>(i)] = choose(i, begin, static_cast<std::size_t>(counts[i]));
    begin += static_cast<std::size_t>(counts[i]);
  }
  if (begin != sources.size()) throw std::invalid_argument("the counts of the walks do not add up to the in-edges.");
  return chosen;
}

#define DATAPIPES_STEPS(Id)                                                                                         \
  template DrawnSteps<Id> draw_steps(const char*, const RowView<Id>&, std::span<const std::int64_t>,                \
                                     std::span<const std::int64_t>, std::span<const std::int64_t>, const WalkStep&, \
                                     const std::optional<RowSums>&);                                                \
  template DrawnSteps<Id> whole_rows(const char*, const RowView<Id>&, std::span<const std::int64_t>,                \
                                     std::span<const std::int64_t>, const std::optional<RowSums>&);
DATAPIPES_STEPS(std::int32_t)
DATAPIPES_STEPS(std::int64_t)
#undef DATAPIPES_STEPS

}  // namespace datapipes
