// test_temporal.cpp: temporal sampling without Python: the times of in-edges, the scans, and rows searched or scanned.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "graph/coarse_times.h"
#include "graph/edge_times.h"
#include "random/philox.h"
#include "sampling/eligible.h"
#include "sampling/sample_hop.h"
#include "sampling/temporal.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;
using Flags = std::vector<std::uint8_t>;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// Vectors of the exact size, so that AddressSanitizer catches a read past either end.
Ints some_times(std::int64_t count, std::uint64_t seed) {
  Stream stream(seed, 1);
  Ints times;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<std::int64_t>(stream.bounded(12));
    times.push_back(drawn == 10 ? kMin : drawn == 11 ? kMax : drawn);
  }
  return times;
}

void the_times_of_sources_are_read_by_in_edge_and_rows_are_said_to_be_sorted() {
  const std::vector<std::int32_t> indices{1, 0, 1, 2};
  const Ints of_nodes{3, 7, 4}, indptr{0, 2, 2, 4};
  for (const int threads : {1, 3}) {
    Ints times(4);
    fill_source_times<std::int32_t>(indices, of_nodes, times, threads);
    CHECK(times == (Ints{7, 3, 7, 4}));
    Flags sorted(3, 9);
    find_sorted_rows(indptr, Ints{7, 3, 9, 9}, Ints{5, 5, 7, 7}, sorted, threads);
    CHECK(sorted == (Flags{0, 1, 1}));
    find_sorted_rows(indptr, Ints{7, 7, 9, 9}, Ints{5, 5, 7, 4}, sorted, threads);
    CHECK(sorted == (Flags{1, 1, 0}));
    find_sorted_rows(indptr, Ints{7, 3, 9, 4}, Ints{5, 1, 7, 4}, sorted, threads);
    CHECK(sorted == (Flags{0, 1, 0}));
    find_sorted_rows(indptr, Ints{1, 2, 2, 2}, {}, sorted, threads);
    CHECK(sorted == (Flags{1, 1, 1}));
  }
  Ints out(4);
  CHECK_THROWS(std::invalid_argument, fill_source_times<std::int32_t>(indices, Ints{1, 2}, out, 1));
  Ints few(3);
  CHECK_THROWS(std::invalid_argument, fill_source_times<std::int32_t>(indices, of_nodes, few, 1));
  Flags sorted(1);
  CHECK_THROWS(std::invalid_argument, find_sorted_rows(Ints{0, 5}, out, {}, sorted, 1));
}

std::vector<std::int16_t> coarse_of(const Ints& times, const TimeScale& scale) {
  std::vector<std::int16_t> coarse(times.size() + kCoarsePadding, 7);
  fill_coarse_times(times, scale, coarse, 2);
  return coarse;
}

void coarse_times_keep_the_order_of_times() {
  const Ints all{kMin, kMin + 1, -70'000, -65'537, -1, 0, 1, 2, 65'532, 65'533, 65'534, 70'000, kMax - 1, kMax};
  for (const TimeScale& scale :
       {TimeScale{0, 0}, TimeScale{-70'000, 1}, TimeScale{kMin, 49}, TimeScale{kMin, 0}, TimeScale{kMax, 0}, TimeScale{0, 63}}) {
    for (std::size_t i = 1; i < all.size(); ++i) {
      const std::int16_t before = scale.at(all[i - 1]), value = scale.at(all[i]);
      CHECK(before <= value);
      CHECK(before != value || !scale.is_exact(value));
    }
  }
  CHECK(find_time_scale({}).shift == 0);
  CHECK(find_time_scale(Ints{5, 5, 5}).is_exact(find_time_scale(Ints{5, 5, 5}).at(5)));
  const TimeScale whole = find_time_scale(Ints{kMin, kMax});
  CHECK(whole.at(kMin) < whole.at(0) && whole.at(0) < whole.at(kMax));
  Ints years;
  for (std::int64_t i = 0; i < 10'000; ++i) years.push_back(i % 1'000 == 9 ? (i % 2'000 == 9 ? kMin : kMax) : i % 60'000);
  CHECK(find_time_scale(years).shift == 0);  // a few outliers do not stretch the scale
  std::vector<std::int16_t> shorter(years.size());
  CHECK_THROWS(std::invalid_argument, (fill_coarse_times(years, whole, shorter, 1), 0));
}

// The scans with coarse times, at scales that distinguish all times, some, or none.
void a_coarse_scan_is_the_plain_one() {
  for (std::int64_t count = 0; count < 200; ++count) {
    Ints times = some_times(count, static_cast<std::uint64_t>(count));
    for (const TimeScale& scale : {find_time_scale(times), TimeScale{0, 0}, TimeScale{0, 1}, TimeScale{3, 0}, TimeScale{0, 2},
                                   TimeScale{kMin, 60}, TimeScale{20, 0}}) {
      const auto coarse = coarse_of(times, scale);
      const RowTimes plain_row{times.data(), times.data(), count};
      const RowTimes row{times.data(), times.data(), count, coarse.data(), scale};
      for (const TimeBounds& bounds : {TimeBounds{5, 2, true}, TimeBounds{5, 5, true}, TimeBounds{5, kMin, false},
                                       TimeBounds{kMax, kMin, true}, TimeBounds{kMin, kMax, true}, TimeBounds{-1, 0, false},
                                       TimeBounds{kMax, kMin, false}, TimeBounds{kMin, kMin, false}}) {
        std::vector<std::uint64_t> wanted(static_cast<std::size_t>(num_words(count))), fast = wanted, plain = wanted;
        Ints ends(wanted.size()), fast_ends = ends, plain_ends = ends;
        const std::int64_t found = mark_eligible_plainly(plain_row, bounds, {wanted.data(), ends.data()});
        CHECK(found == mark_eligible(row, bounds, {fast.data(), fast_ends.data()}));
        CHECK(found == mark_eligible_plainly(row, bounds, {plain.data(), plain_ends.data()}));
        CHECK(found == count_eligible(row, bounds, count));
        CHECK(wanted == fast && wanted == plain && ends == fast_ends && ends == plain_ends);
      }
    }
  }
}

void a_wide_scan_is_the_plain_one() {
  for (std::int64_t count = 0; count < 200; ++count) {
    const Ints one = some_times(count, 3), other = some_times(count, static_cast<std::uint64_t>(count));
    Ints latest, earliest;
    for (std::size_t i = 0; i < one.size(); ++i) {
      latest.push_back(std::max(one[i], other[i]));
      earliest.push_back(std::min(one[i], other[i]));
    }
    const RowTimes row{latest.data(), earliest.data(), count};
    for (const TimeBounds& bounds : {TimeBounds{5, 2, true}, TimeBounds{5, kMin, false}, TimeBounds{kMax, kMin, true},
                                     TimeBounds{kMin, kMax, true}, TimeBounds{-1, 0, false}}) {
      std::vector<std::uint64_t> fast(static_cast<std::size_t>(num_words(count))), plain = fast;
      Ints ends(fast.size()), plain_ends = ends;
      const std::int64_t found = mark_eligible(row, bounds, {fast.data(), ends.data()});
      CHECK(found == mark_eligible_plainly(row, bounds, {plain.data(), plain_ends.data()}));
      CHECK(found == count_eligible(row, bounds, count));
      CHECK(std::min<std::int64_t>(found, 3) == std::min<std::int64_t>(count_eligible(row, bounds, 3), 3));
      CHECK(fast == plain && ends == plain_ends);
    }
  }
}

// Rows of many degrees. `searched` of them are sorted by time and marked so; the other flags are 0.
void a_row_that_is_searched_gives_what_one_that_is_scanned_gives() {
  Ints indptr{0};
  std::vector<std::int64_t> indices;
  Ints latest, earliest;
  for (const std::int64_t degree : {0, 1, 5, 8, 9, 24, 25, 63, 64, 65, 200, 0, 3'000}) {
    Ints times = some_times(degree, static_cast<std::uint64_t>(degree)), others = some_times(degree, 77);
    std::sort(times.begin(), times.end());
    std::sort(others.begin(), others.end());
    for (std::size_t i = 0; i < times.size(); ++i) {
      latest.push_back(std::max(times[i], others[i]));
      earliest.push_back(std::min(times[i], others[i]));
      indices.push_back(static_cast<std::int64_t>(i) % 13);
    }
    indptr.push_back(std::ssize(latest));
  }
  const std::int64_t num_rows = std::ssize(indptr) - 1;
  const RowView<std::int64_t> rows{indptr, indices, 13};
  const Flags searched(static_cast<std::size_t>(num_rows), 1), scanned(static_cast<std::size_t>(num_rows), 0);
  const auto coarse = coarse_of(latest, {0, 1});
  std::vector<double> weights;
  for (std::size_t i = 0; i < latest.size(); ++i) weights.push_back(static_cast<double>(i * 37 % 11) * (i % 5 == 0 ? 1e6 : 0.1));
  Ints seeds, times;
  std::vector<std::uint32_t> streams;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (const std::int64_t time : {kMin, kMin + 1, std::int64_t{0}, std::int64_t{5}, std::int64_t{10}, kMax}) {
      seeds.push_back(row);
      times.push_back(time);
      streams.push_back(static_cast<std::uint32_t>(seeds.size() % 5));
    }
  }
  for (const std::int64_t fanout : {-1, 0, 1, 7, 40}) {
    for (const bool inclusive : {false, true}) {
      for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{4}, kMax}) {
        for (const int how : {0, 1, 2, 3, 4}) {  // uniform, with replacement, last, by weight, by weight with replacement
          Temporal policy{fanout,
                          how == 1 || how == 4,
                          9,
                          {latest.data(), earliest.data(), searched.data(), nullptr, {0, 1}},
                          {how == 2, inclusive, window},
                          how >= 3 ? weights.data() : nullptr};
          const HopRows of{seeds, {}, streams, times};
          const auto one = sample_hop<std::int64_t>(of, {0, rows, policy}, Places::kPositions);
          policy.times.sorted = scanned.data();
          for (const int threads : {1, 3, 4}) {
            policy.times.coarse = threads == 4 ? coarse.data() : nullptr;  // read without a window: `earliest` differs
            const auto other = sample_hop<std::int64_t>(of, {0, rows, policy}, Places::kPositions, threads);
            CHECK(std::ranges::equal(one.indptr.first(one.indptr.size()), other.indptr.first(other.indptr.size())));
            CHECK(std::ranges::equal(one.positions.first(one.positions.size()), other.positions.first(other.positions.size())));
          }
        }
      }
    }
  }
}

void times_that_change_after_the_plan_are_refused() {
  Ints latest{5, 1, 9, 2, 8, 3, 7};
  const Flags scanned{0};
  const std::vector<std::int64_t> indices(7);
  for (const bool last : {false, true}) {
    const Temporal policy{3, false, 9, {latest.data(), latest.data(), scanned.data()}, {last, false, -1}};
    const Row row{0, 7, 0, 0, 0, 9};
    RowPlan plan;
    policy.plan_block(&row, 1, &plan);
    CHECK(plan.picks == 3);
    Row narrowed = row;
    narrowed.degree = plan.degree;
    Temporal::Scratch scratch;
    Ints out(3);
    const Ints before = std::exchange(latest, Ints{5, 10, 9, 20, 8, 30, 40});
    const Temporal changed{3, false, 9, {latest.data(), latest.data(), scanned.data()}, {last, false, -1}};
    CHECK_THROWS(std::invalid_argument, (scratch.choose(changed, indices.data(), narrowed, plan.picks, out.data()), 0));
    latest = before;
  }
}

}  // namespace

SUITE(test_temporal) {
  RUN(the_times_of_sources_are_read_by_in_edge_and_rows_are_said_to_be_sorted);
  RUN(coarse_times_keep_the_order_of_times);
  RUN(a_wide_scan_is_the_plain_one);
  RUN(a_coarse_scan_is_the_plain_one);
  RUN(a_row_that_is_searched_gives_what_one_that_is_scanned_gives);
  RUN(times_that_change_after_the_plan_are_refused);
}

}  // namespace datapipes
