#include "sampling/walk_steps.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/inside.h"
#include "common/load.h"
#include "random/philox.h"
#include "sampling/sums_search.h"

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

void check_lengths(std::size_t walkers, std::size_t before, std::size_t rows, const WalkStep& step) {
  if (walkers != rows || before != rows) throw std::invalid_argument("give one walker and one node before for each row.");
  if (!(step.p > 0 && step.q > 0) || step.end_below > std::uint64_t{1} << 32)
    throw std::invalid_argument("p and q must be above 0, and end_below at most 2^32.");
}

template <class Value>
Buffer<Value> buffer_of(const std::vector<Value>& values) {
  Buffer<Value> made(std::ssize(values));
  std::copy(values.begin(), values.end(), made.data());
  return made;
}

}  // namespace

template <class Id>
DrawnSteps<Id> draw_steps(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> walkers, std::span<const std::int64_t> before, const WalkStep& step,
                          const std::optional<RowSums>& sums) {
  check_lengths(walkers.size(), before.size(), rows.size(), step);
  if (sums) check_row_sums(*sums, graph.num_rows(), std::ssize(graph.indices));
  const Acceptance acceptance(step.p, step.q);
  DrawnSteps<Id> drawn{Buffer<std::int64_t>(std::ssize(rows)), {}, {}, {}, {}};
  std::vector<std::int64_t> positions;
  std::vector<std::uint8_t> kinds;
  const auto add = [&](std::int64_t position, StepKind kind) {
    positions.push_back(position);
    kinds.push_back(static_cast<std::uint8_t>(kind));
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t first = positions.size();
    const std::int64_t row = read_once(rows[i]);
    check_node(op, row, graph.num_rows());
    const std::int64_t begin = graph.indptr[static_cast<std::size_t>(row)], end = graph.indptr[static_cast<std::size_t>(row) + 1];
    if (!is_range_inside(begin, end, std::ssize(graph.indices))) throw_bad_indptr(op, row, begin, end, std::ssize(graph.indices));
    const double* const of_row = sums ? sums->sums.data() + begin : nullptr;
    Stream stream = stream_of(step, walkers[i]);
    const bool ends = step.end_below > 0 && stream.word() < step.end_below;
    if (!ends && end > begin && (of_row == nullptr || of_row[end - begin - 1] > 0)) {
      bool is_sure = acceptance.is_plain || before[i] < 0;
      if (is_sure) add(begin + draw(stream, of_row, end - begin), StepKind::kSure);
      for (int refusals = 0; !is_sure && refusals < kMostRefusals; ++refusals) {
        const std::int64_t position = begin + draw(stream, of_row, end - begin);
        const std::uint64_t word = stream.word();
        const bool is_back = graph.indices[static_cast<std::size_t>(position)] == before[i];
        const bool near = word < (is_back ? acceptance.back : acceptance.near);
        const bool far = word < (is_back ? acceptance.back : acceptance.far);
        is_sure = near && far;
        if (near || far) add(position, is_sure ? StepKind::kSure : near ? StepKind::kIfNear : StepKind::kIfFar);
      }
      if (!is_sure) {
        positions.resize(first);
        kinds.resize(first);
        for (std::int64_t position = begin; position < end; ++position) add(position, StepKind::kRow);
      }
    }
    drawn.counts[static_cast<std::int64_t>(i)] = static_cast<std::int64_t>(positions.size() - first);
  }
  drawn.sources = Buffer<Id>(std::ssize(positions));
  drawn.sums = Buffer<double>(sums ? std::ssize(positions) : 0);
  for (std::size_t at = 0; at < positions.size(); ++at) {
    const Id source = graph.indices[static_cast<std::size_t>(positions[at])];
    if (!is_inside(source, graph.num_sources)) throw_bad_neighbor(op, positions[at], source, graph.num_sources);
    drawn.sources[static_cast<std::int64_t>(at)] = source;
    const bool has_sum = static_cast<StepKind>(kinds[at]) == StepKind::kRow;
    if (sums) drawn.sums[static_cast<std::int64_t>(at)] = has_sum ? sums->sums[static_cast<std::size_t>(positions[at])] : 0.0;
  }
  drawn.positions = buffer_of(positions);
  drawn.kinds = buffer_of(kinds);
  return drawn;
}

namespace {

// Draws from a whole row, as draw_steps did, but knowing which sources are near.
template <class Id>
std::int64_t chosen_in_row(Stream& stream, std::span<const Id> sources, std::span<const double> sums,
                           std::span<const std::uint8_t> near, std::int64_t before, const Acceptance& acceptance) {
  const auto degree = std::ssize(sources);
  const double* const of_row = sums.empty() ? nullptr : sums.data();
  const auto limit = [&](std::size_t i) {
    return sources[i] == before ? acceptance.back : near[i] != 0 ? acceptance.near : acceptance.far;
  };
  for (int refusals = 0; refusals < kMostRefusals; ++refusals) {
    const std::int64_t at = draw(stream, of_row, degree);
    if (stream.word() < limit(static_cast<std::size_t>(at))) return at;
  }
  std::vector<double> totals(sources.size());
  double total = 0, last = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double chance = sources[i] == before ? acceptance.back_weight : near[i] != 0 ? 1.0 : acceptance.far_weight;
    total += (of_row == nullptr ? 1.0 : of_row[i] - last) * chance;
    if (of_row != nullptr) last = of_row[i];
    totals[i] = total;
  }
  if (!std::isfinite(total)) throw std::invalid_argument("the weights of a row, times 1/p and 1/q, have an infinite sum.");
  return draw(stream, totals.data(), degree);
}

bool are_sums(std::span<const double> sums) {
  double before = 0;
  for (const double sum : sums) {
    if (!(sum >= before) || !std::isfinite(sum)) return false;
    before = sum;
  }
  return before > 0;
}

}  // namespace

template <class Id>
Buffer<std::int64_t> chosen_steps(const StepsGiven<Id>& given, std::span<const std::int64_t> walkers,
                                  std::span<const std::int64_t> before, const WalkStep& step) {
  check_lengths(walkers.size(), before.size(), given.counts.size(), step);
  const Acceptance acceptance(step.p, step.q);
  const std::size_t num_edges = given.sources.size();
  if (given.kinds.size() != num_edges || given.near.size() != num_edges ||
      (!given.sums.empty() && given.sums.size() != num_edges))
    throw std::invalid_argument("give one kind, one of near, and with weights one sum for each in-edge.");
  Buffer<std::int64_t> chosen(std::ssize(given.counts));
  std::size_t begin = 0;
  for (std::size_t i = 0; i < given.counts.size(); ++i) {
    if (given.counts[i] < 0 || static_cast<std::size_t>(given.counts[i]) > num_edges - begin)
      throw std::invalid_argument("the counts of the walks do not add up to the in-edges.");
    const auto count = static_cast<std::size_t>(given.counts[i]);
    std::int64_t found = -1;
    if (count > 0 && static_cast<StepKind>(given.kinds[begin]) == StepKind::kRow) {
      const auto sums = given.sums.empty() ? given.sums : given.sums.subspan(begin, count);
      if (!sums.empty() && !are_sums(sums)) throw std::invalid_argument("a row has sums that no weights have.");
      Stream stream = stream_of(step, walkers[i]);
      if (step.end_below > 0) stream.word();
      found = chosen_in_row<Id>(stream, given.sources.subspan(begin, count), sums, given.near.subspan(begin, count), before[i],
                                acceptance);
    } else {
      for (std::size_t at = 0; at < count && found < 0; ++at) {
        const auto kind = static_cast<StepKind>(given.kinds[begin + at]);
        const bool near = given.near[begin + at] != 0;
        const bool is_taken =
            kind == StepKind::kSure || (kind == StepKind::kIfNear && near) || (kind == StepKind::kIfFar && !near);
        if (is_taken) found = static_cast<std::int64_t>(at);
      }
      if (count > 0 && found < 0) throw std::invalid_argument("a walk has in-edges, but none that is taken for sure.");
    }
    chosen[static_cast<std::int64_t>(i)] = found < 0 ? -1 : static_cast<std::int64_t>(begin) + found;
    begin += count;
  }
  if (begin != num_edges) throw std::invalid_argument("the counts of the walks do not add up to the in-edges.");
  return chosen;
}

#define DATAPIPES_STEPS(Id)                                                                                         \
  template DrawnSteps<Id> draw_steps(const char*, const RowView<Id>&, std::span<const std::int64_t>,                \
                                     std::span<const std::int64_t>, std::span<const std::int64_t>, const WalkStep&, \
                                     const std::optional<RowSums>&);                                                \
  template Buffer<std::int64_t> chosen_steps(const StepsGiven<Id>&, std::span<const std::int64_t>,                  \
                                             std::span<const std::int64_t>, const WalkStep&);
DATAPIPES_STEPS(std::int32_t)
DATAPIPES_STEPS(std::int64_t)
#undef DATAPIPES_STEPS

}  // namespace datapipes
