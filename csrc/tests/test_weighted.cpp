// test_weighted.cpp: sums of weights and weighted draws at every degree and fanout, for the sanitizers. tests/sampling/
// compares the bits with the twin.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "graph/rows_digest.h"
#include "random/philox.h"
#include "sampling/draw_items.h"
#include "sampling/row_sums.h"
#include "sampling/sample_hop.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

// Rows of all degrees up to 90 and some hubs; weights over many orders of magnitude, with zeros where asked for.
struct Rows {
  Ints indptr{0};
  std::vector<std::int32_t> indices;
  std::vector<double> weights;
  explicit Rows(bool zeros) {
    for (std::int64_t degree = 0; degree < 94; ++degree) {
      const std::int64_t hubs[] = {512, 700, 3000, 6000};
      const std::int64_t count = degree < 90 ? degree : hubs[degree - 90];
      for (std::int64_t i = 0; i < count; ++i) {
        indices.push_back(static_cast<std::int32_t>((i * 7 + degree) % 94));
        weights.push_back(zeros && i % 5 == 2 ? 0.0 : static_cast<double>(i * 37 % 11 + 1) * (i % 13 == 0 ? 1e6 : 1.0));
      }
      indptr.push_back(std::ssize(indices));
    }
  }
  RowView<std::int32_t> view() const { return {indptr, indices, 94}; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span<const double>(weights)); }
};

RowSums view_of(const OwnedRowSums& made) {
  return {made.sums.first(made.sums.size()), made.coarse.first(made.coarse.size()), made.drawable.first(made.drawable.size())};
}

template <class T>
Ints ints(const Buffer<T>& buffer) {
  return Ints(buffer.data(), buffer.data() + buffer.size());
}

void weighted_picks_stay_in_their_rows_at_every_degree_and_fanout() {
  for (const bool zeros : {false, true}) {
    const Rows rows(zeros);
    const OwnedRowSums made = make_row_sums("w", rows.indptr, rows.bytes(), WeightType::kFloat64);
    CHECK((made.drawable.size() == (zeros ? 94 : 0)));
    Ints everyone(94);
    for (std::size_t v = 0; v < 94; ++v) everyone[v] = static_cast<std::int64_t>(v);
    for (const std::int64_t fanout : {-1, 0, 1, 4, 15, 33, 64, 200, 400}) {
      for (const bool replace : {false, true}) {
        const Policy policy = Weighted{fanout, replace, 5, view_of(made)};
        const auto hop = sample_hop(rows.view(), everyone, policy);
        bool right = true;
        for (std::size_t v = 0; v < 94; ++v) {
          std::int64_t drawable = 0;
          for (std::int64_t i = rows.indptr[v]; i < rows.indptr[v + 1]; ++i)
            drawable += static_cast<std::int64_t>(rows.weights[static_cast<std::size_t>(i)] > 0);
          const std::int64_t begin = hop.indptr[static_cast<std::int64_t>(v)], end = hop.indptr[static_cast<std::int64_t>(v) + 1];
          right &= end - begin == pick_count(drawable, fanout, replace);
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t at = hop.positions[i];
            right &= at >= rows.indptr[v] && at < rows.indptr[v + 1] && rows.weights[static_cast<std::size_t>(at)] > 0;
            if (!(replace && fanout >= 0) && i > begin) right &= hop.positions[i - 1] < at;
          }
        }
        CHECK(right);
        const auto again = sample_hop(rows.view(), everyone, policy, 3);
        CHECK(ints(again.positions) == ints(hop.positions));
      }
    }
  }
}

void sums_and_digests_do_not_depend_on_threads() {
  Ints indptr{0};
  std::vector<float> weights;
  for (std::int64_t v = 0; v < 20'000; ++v) {
    for (std::int64_t i = 0; i < v % 7; ++i) weights.push_back(static_cast<float>(v % 100) / 8);
    indptr.push_back(std::ssize(weights));
  }
  const auto bytes = std::as_bytes(std::span<const float>(weights));
  const OwnedRowSums one = make_row_sums("w", indptr, bytes, WeightType::kFloat32);
  const OwnedRowSums two = make_row_sums("w", indptr, bytes, WeightType::kFloat32, {}, 3);
  CHECK(std::equal(one.sums.data(), one.sums.data() + one.sums.size(), two.sums.data()));
  CHECK(std::equal(one.coarse.data(), one.coarse.data() + one.coarse.size(), two.coarse.data()));
  CHECK(ints(one.drawable) == ints(two.drawable));
  const RowsDigest first = rows_digest(indptr, bytes, 4, {}), second = rows_digest(indptr, bytes, 4, {}, 3);
  CHECK(first.low == second.low);
  CHECK(first.high == second.high);
  CHECK_THROWS(std::invalid_argument, rows_digest(indptr, bytes.first(8), 4, {}, 3));
}

void weights_that_are_none_are_refused() {
  const Ints indptr{0, 1, 3};
  for (const double wrong : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> weights{1, wrong, 1};
    CHECK_THROWS(std::invalid_argument,
                 make_row_sums("w", indptr, std::as_bytes(std::span<const double>(weights)), WeightType::kFloat64));
  }
  const std::vector<double> huge{1, 1e308, 1e308};
  CHECK_THROWS(std::invalid_argument,
               make_row_sums("w", indptr, std::as_bytes(std::span<const double>(huge)), WeightType::kFloat64));
  CHECK_THROWS(std::invalid_argument, check_row_sums({}, 2, 3));
}

void sums_that_no_weights_have_do_no_harm() {
  const Rows rows(false);
  const OwnedRowSums made = make_row_sums("w", rows.indptr, rows.bytes(), WeightType::kFloat64);
  for (const double value : {0.0, std::numeric_limits<double>::quiet_NaN()}) {
    const std::vector<double> sums(static_cast<std::size_t>(made.sums.size()), value);
    const std::vector<double> coarse(static_cast<std::size_t>(made.coarse.size()), 1.0);
    for (const std::int64_t row : {3, 40, 80, 93}) {
      CHECK_THROWS(std::invalid_argument,
                   sample_hop(rows.view(), Ints{row}, Policy(Weighted{2, false, 5, RowSums{sums, coarse, {}}})));
      (void)sample_hop(rows.view(), Ints{row}, Policy(Weighted{9, true, 5, RowSums{sums, coarse, {}}}));
    }
  }
}

void items_are_drawn_place_by_place_and_ordered_once_each() {
  for (const std::int64_t count : {1, 7, 8, 9, 64, 1000}) {
    std::vector<double> weights;
    for (std::int64_t i = 0; i < count; ++i) weights.push_back(i % 5 == 2 ? 0.0 : i % 13 == 0 ? 1e6 : 1.0);
    const auto drawable = count - std::count(weights.begin(), weights.end(), 0.0);
    const auto bytes = std::as_bytes(std::span<const double>(weights));
    const OwnedRowSums made = make_row_sums("w", Ints{0, count}, bytes, WeightType::kFloat64);
    const RowSums sums = view_of(made);
    Ints order(static_cast<std::size_t>(drawable)), half(static_cast<std::size_t>(drawable / 2)), drawn(50), uniform(50);
    order_items(5, count, sums, order);
    order_items(5, count, sums, half);
    CHECK(std::equal(half.begin(), half.end(), order.begin()));
    draw_items(5, count, &sums, 30, drawn);
    draw_items(5, count, nullptr, 30, uniform);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      CHECK(weights[static_cast<std::size_t>(drawn[i])] > 0);
      CHECK(uniform[i] == static_cast<std::int64_t>(Stream(5, 30 + i, 10).bounded(static_cast<std::uint64_t>(count))));
      Ints one(1);
      draw_items(5, count, &sums, 30 + static_cast<std::int64_t>(i), one);
      CHECK(one[0] == drawn[i]);
    }
    std::sort(order.begin(), order.end());
    CHECK(std::adjacent_find(order.begin(), order.end()) == order.end());
    for (const std::int64_t item : order) CHECK(weights[static_cast<std::size_t>(item)] > 0);
    Ints more(static_cast<std::size_t>(drawable + 1));
    CHECK_THROWS(std::invalid_argument, order_items(5, count, sums, more));
    CHECK_THROWS(std::invalid_argument, draw_items(5, count + 8, &sums, 0, more));
    CHECK_THROWS(std::invalid_argument, draw_items(5, count, &sums, -1, more));
  }
}

}  // namespace

SUITE(test_weighted) {
  RUN(items_are_drawn_place_by_place_and_ordered_once_each);
  RUN(weighted_picks_stay_in_their_rows_at_every_degree_and_fanout);
  RUN(sums_and_digests_do_not_depend_on_threads);
  RUN(weights_that_are_none_are_refused);
  RUN(sums_that_no_weights_have_do_no_harm);
}

}  // namespace datapipes
