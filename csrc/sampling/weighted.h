// weighted.h: the choice policy of weighted and masked sampling: successive draws, each in proportion to the weights that are
// left; docs/semantics.md section 3.1. It draws from the running sums of a row (row_sums.h).
//   A search in the sums of a hop misses the cache at each step. So the rows of a block are drawn in passes; each pass
//   prefetches the input of the next: (1) the sums of a short row, else its coarse sums; (2) the words of each draw and the
//   line of sums that the coarse sums lead to; (3) the place in that line, and the line of `indices`.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "random/draw_few.h"
#include "random/philox.h"
#include "sampling/choose.h"
#include "sampling/choose_few.h"
#include "sampling/row_plan.h"
#include "sampling/row_sums.h"
#include "sampling/sums_search.h"

namespace datapipes {

struct Weighted {
  std::int64_t fanout;  // -1: all drawable in-edges
  bool replace;
  std::uint64_t key;  // hop_key(...)
  RowSums sums;

  std::int64_t drawable(const Row& row) const { return sums.drawable_of(row.number, row.degree); }
  RowPlan plan(const Row& row) const { return {row.begin, row.degree, pick_count(drawable(row), fanout, replace)}; }
  [[gnu::always_inline]] void prefetch(std::int64_t row) const { sums.prefetch_drawable(row); }

  class Scratch {
   public:
    template <class Id, class RowOf>
    void choose_block(const Weighted& policy, const Id* indices, const RowOf& row_of, const std::int64_t* indptr,
                      std::int64_t begin, std::int64_t stop, std::int64_t* out) {
      const double* const sums = policy.sums.sums.data();
      const double* const coarse = policy.sums.coarse.data();
      num_jobs_ = 0;
      for (std::int64_t d = begin; d < stop; ++d) {
        const std::int64_t picks = indptr[d + 1] - indptr[d];
        if (picks == 0) continue;
        const Row row = row_of(d);
        std::int64_t* const to = out + (indptr[d] - indptr[begin]);
        if (picks == row.degree && !policy.draws_again()) {  // all in-edges, so all can be drawn
          for (std::int64_t i = 0; i < picks; ++i) to[i] = row.begin + i;
          prefetch_picks(indices, to, picks);
          continue;
        }
        jobs_[num_jobs_++] = {row, picks, to};
        const std::int64_t end = row.begin + row.degree;
        if (row.degree <= kShortRow || picks > kMostPicks) {
          for (std::int64_t i = line_of(row.begin); i < end && i < row.begin + kMostPicks; i += kLineSums)
            __builtin_prefetch(sums + i);
        } else {
          const std::int64_t last = (end - 1) / kLineSums;
          for (std::int64_t i = row.begin / kLineSums; i < last && i < row.begin / kLineSums + kMostPicks; i += kLineSums)
            __builtin_prefetch(coarse + i);
          __builtin_prefetch(sums + end - 1);
        }
      }
      std::size_t num_far = 0;
      std::int64_t num_places = 0;
      for (std::size_t j = 0; j < num_jobs_; ++j) {
        const Job& job = jobs_[j];
        if (!policy.draws_again() && job.picks == policy.drawable(job.row)) {
          list_drawable(policy, job);
        } else if (job.picks > kMostPicks) {
          draw_slowly(policy, job);
        } else if (job.row.degree <= kShortRow) {
          if (policy.replace) {
            draw_near<true>(policy, job);
          } else {
            draw_near<false>(policy, job);
          }
        } else {
          far_[num_far] = {j, num_places, draws_at_once(policy, job)};
          place(policy, job.row, far_[num_far].draws, places_.data() + num_places);
          num_places += far_[num_far++].draws;
          continue;
        }
        prefetch_picks(indices, job.to, job.picks);
      }
      for (std::size_t f = 0; f < num_far; ++f) {
        const Job& job = jobs_[far_[f].job];
        draw_far(policy, job, far_[f].draws, places_.data() + far_[f].first);
        prefetch_picks(indices, job.to, job.picks);
      }
    }

    // Writes the first `out.size()` picks of a row, in the order in which the rule without replacement draws them.
    void draw_order(const Weighted& policy, const Row& row, std::span<std::int64_t> out) {
      std::int64_t* to = out.data();
      draw_distinct(policy, row, std::ssize(out), [&](std::int64_t offset) { *to++ = row.begin + offset; });
    }

   private:
    static constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr std::int64_t kShortRow = 64;  // in-edges; a word holds a set of them
    static constexpr std::int64_t kTogether = 16;  // draws
    static constexpr std::size_t kKeptSums = std::size_t{1} << 17;
    static constexpr std::int64_t kMostPicks = 256;  // of a block of draw_hop.h; for more picks a row is a block

    struct Job {
      Row row;
      std::int64_t picks;
      std::int64_t* to;
    };

    struct Place {
      double x;
      std::int64_t line;  // the line of 8 sums with the first sum above x
    };
    struct Far {
      std::size_t job;
      std::int64_t first, draws;  // in places_
    };

    static std::int64_t line_of(std::int64_t position) { return position / kLineSums * kLineSums; }

    template <class Id>
    [[gnu::always_inline]] static void prefetch_picks(const Id* indices, const std::int64_t* positions, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(indices + positions[i]);
    }

    static void list_drawable(const Weighted& policy, const Job& job) {
      const double* const sums = policy.sums.sums.data();
      double before = 0;
      std::int64_t count = 0;
      for (std::int64_t i = job.row.begin; i < job.row.begin + job.row.degree && count < job.picks; ++i) {
        job.to[count] = i;
        count += static_cast<std::int64_t>(sums[i] > before);
        before = sums[i];
      }
      if (count != job.picks) throw_bad_sums();
    }

    // Draws a row of at most kShortRow in-edges, from a copy of its sums in whole lines, filled up with infinity.
    template <bool kReplace>
    void draw_near(const Weighted& policy, const Job& job) {
      const Row row = job.row;
      const double* const of_row = policy.sums.sums.data() + row.begin;
      const std::int64_t last = line_of(row.degree - 1);
      double total = of_row[row.degree - 1];
      std::copy(of_row, of_row + row.degree, near_.data());
      for (std::int64_t i = row.degree; i < last + kLineSums; ++i) near_[static_cast<std::size_t>(i)] = kInfinity;
      std::int64_t rejections = most_rejections(row.degree);  // still allowed
      std::uint64_t set = 0;
      std::int64_t missing = job.picks;
      std::int64_t* to = job.to;
      std::uint32_t words[8];
      for (std::uint32_t block = 0;; block += 2) {
        philox_two_blocks(policy.key, row.node, row.stream, block, words);
        for (int i = 0; i < 8; i += 2) {
          const double x = place_of(words[i], words[i + 1], total);
          const double* line = near_.data();
          for (std::int64_t at = kLineSums - 1; at < last; at += kLineSums)
            line += kLineSums & -static_cast<std::int64_t>(near_[static_cast<std::size_t>(at)] <= x);
          const int found = first_above(line, 0, kLineSums, x);
          const std::int64_t pick = found >= 0 && line + found < near_.data() + row.degree
                                        ? line + found - near_.data()
                                        : last_drawable(near_.data(), 0, row.degree);
          if constexpr (kReplace) {
            *to++ = row.begin + pick;
            if (--missing == 0) return;
          } else {
            const std::uint64_t bit = std::uint64_t{1} << pick;
            const auto is_new = static_cast<std::int64_t>((set & bit) == 0);
            set |= bit;
            missing -= is_new;
            rejections -= 1 - is_new;
            if (missing == 0) {
              for (std::int64_t at = 0; at < job.picks; ++at, set &= set - 1) to[at] = row.begin + __builtin_ctzll(set);
              return;
            }
            if (rejections == 0) {
              total = remove_near(of_row, row.degree, set);
              rejections = most_rejections(row.degree);
            }
          }
        }
      }
    }

    // Makes `near_` the running sums of the weights of a short row without those of its picks; returns the last.
    double remove_near(const double* of_row, std::int64_t degree, std::uint64_t set) {
      constexpr double kKeep[2] = {1.0, 0.0};
      double total = 0, before = 0;
      for (std::int64_t i = 0; i < degree; ++i, set >>= 1) {
        total += (of_row[i] - before) * kKeep[set & 1];
        before = of_row[i];
        near_[static_cast<std::size_t>(i)] = total;
      }
      if (!(total > 0)) throw_bad_sums();
      return total;
    }

    // The number of a long row's draws to look up at once: some more than the picks if repeats are likely.
    static std::int64_t draws_at_once(const Weighted& policy, const Job& job) {
      if (policy.replace) return job.picks;
      return (job.picks + job.picks * job.picks / job.row.degree + 3) / 4 * 4;
    }

    // Draws the words of a long row, and looks up their lines of sums.
    void place(const Weighted& policy, const Row& row, std::int64_t draws, Place* places) {
      const double* const sums = policy.sums.sums.data();
      const double* const coarse = policy.sums.coarse.data();
      const double total = sums[row.begin + row.degree - 1];
      std::uint32_t words[8];
      for (std::int64_t i = 0; i < draws; i += 4) {
        philox_two_blocks(policy.key, row.node, row.stream, static_cast<std::uint32_t>(i / 2), words);
        const std::int64_t some = std::min<std::int64_t>(draws - i, 4);
        for (std::int64_t j = 0; j < some; ++j) {
          const double x = place_of(words[2 * j], words[2 * j + 1], total);
          const std::int64_t line = line_above(coarse, row.begin, row.degree, x);
          __builtin_prefetch(sums + line);
          places[i + j] = {x, line};
        }
      }
    }

    void draw_far(const Weighted& policy, const Job& job, std::int64_t draws, const Place* places) {
      const double* const sums = policy.sums.sums.data();
      const Row& row = job.row;
      if (policy.replace) {
        for (std::int64_t i = 0; i < job.picks; ++i)
          job.to[i] = in_line(sums, row.begin, row.degree, places[i].line, places[i].x);
        return;
      }
      if (!clean_) set_.clear();
      clean_ = true;
      if (set_.size() < static_cast<std::size_t>(row.degree / 64 + 1)) set_.resize(static_cast<std::size_t>(row.degree / 64 + 1));
      std::int64_t count = 0, drawn = 0;
      for (; drawn < draws && count < job.picks; ++drawn) {
        const std::int64_t pick = in_line(sums, row.begin, row.degree, places[drawn].line, places[drawn].x);
        job.to[count] = pick;
        count += static_cast<std::int64_t>(add(pick - row.begin));
      }
      const std::int64_t limit = most_rejections(row.degree);
      const double total = sums[row.begin + row.degree - 1];
      std::uint32_t words[8];
      for (; count < job.picks && drawn - count < limit; ++drawn) {
        if (drawn % 4 == 0) philox_two_blocks(policy.key, row.node, row.stream, static_cast<std::uint32_t>(drawn / 2), words);
        const double x = place_of(words[drawn % 4 * 2], words[drawn % 4 * 2 + 1], total);
        const std::int64_t pick =
            in_line(sums, row.begin, row.degree, line_above(policy.sums.coarse.data(), row.begin, row.degree, x), x);
        job.to[count] = pick;
        count += static_cast<std::int64_t>(add(pick - row.begin));
      }
      for (std::int64_t i = 0; i < count; ++i) set_[static_cast<std::size_t>(job.to[i] - row.begin) / 64] = 0;
      if (count < job.picks || drawn - count >= limit) return draw_slowly(policy, job);
      sort(job);
    }

    void sort(const Job& job) {
      if (job.picks > kFewDraws || job.row.degree > std::numeric_limits<std::int32_t>::max()) {
        std::sort(job.to, job.to + job.picks);
        return;
      }
      std::uint32_t offsets[kFewDraws] = {};
      for (std::int64_t i = 0; i < job.picks; ++i) offsets[i] = static_cast<std::uint32_t>(job.to[i] - job.row.begin);
      if (job.row.degree <= std::numeric_limits<std::int16_t>::max()) {
        in_order<std::int16_t>(offsets, job.picks, job.to);
      } else {
        in_order<std::int32_t>(offsets, job.picks, job.to);
      }
      for (std::int64_t i = 0; i < job.picks; ++i) job.to[i] += job.row.begin;
    }

    // Returns whether the offset was not in the set yet.
    bool add(std::int64_t offset) {
      std::uint64_t& word = set_[static_cast<std::size_t>(offset) / 64];
      const std::uint64_t bit = std::uint64_t{1} << offset % 64;
      const bool added = (word & bit) == 0;
      word |= bit;
      return added;
    }

    static std::int64_t most_rejections(std::int64_t degree) { return 8 + degree / 8; }

    // Draws any row, as in docs/semantics.md.
    void draw_slowly(const Weighted& policy, const Job& job) {
      const Row& row = job.row;
      if (policy.replace) {
        std::int64_t found[kTogether];
        for (std::int64_t i = 0; i < job.picks; ++i) {
          if (i % kTogether == 0) draw_together(policy, row, policy.sums.sums.data() + row.begin, i, found);
          job.to[i] = row.begin + found[i % kTogether];
        }
        return;
      }
      draw_distinct(policy, row, job.picks, [](std::int64_t) {});
      std::int64_t* to = job.to;
      for (std::size_t w = 0; w < set_.size(); ++w) {
        for (std::uint64_t set = set_[w]; set != 0; set &= set - 1)
          *to++ = row.begin + static_cast<std::int64_t>(w * 64) + __builtin_ctzll(set);
        set_[w] = 0;
      }
      clean_ = true;
      if (rest_.size() > kKeptSums) rest_ = {};  // free the scratch of a hub at once
    }

    // Makes `kTogether` draws from the sums of a row, from draw `first` on, a multiple of kTogether. The searches go in
    // lockstep, so they wait for memory together.
    static void draw_together(const Weighted& policy, const Row& row, const double* of_row, std::int64_t first,
                              std::int64_t* found) {
      double x[kTogether];
      std::uint32_t words[8];
      for (std::int64_t i = 0; i < kTogether; i += 4) {
        philox_two_blocks(policy.key, row.node, row.stream, static_cast<std::uint32_t>((first + i) / 2), words);
        for (std::int64_t j = 0; j < 4; ++j) x[i + j] = place_of(words[2 * j], words[2 * j + 1], of_row[row.degree - 1]);
      }
      std::fill(found, found + kTogether, 0);
      for (std::int64_t left = row.degree; left > 1;) {
        const std::int64_t half = left / 2;
        for (int i = 0; i < kTogether; ++i) found[i] += half & -static_cast<std::int64_t>(of_row[found[i] + half - 1] <= x[i]);
        left -= half;
      }
      for (int i = 0; i < kTogether; ++i) {
        found[i] += static_cast<std::int64_t>(of_row[found[i]] <= x[i]);
        if (found[i] == row.degree) found[i] = last_drawable(of_row, 0, row.degree);
      }
    }

    // Draws until `set_` has `picks` offsets, of which at least so many can be drawn; calls take(offset) for each, in draw order.
    template <class Take>
    void draw_distinct(const Weighted& policy, const Row& row, std::int64_t picks, Take&& take) {
      const double* const sums = policy.sums.sums.data() + row.begin;
      const auto degree = static_cast<std::size_t>(row.degree);
      set_.assign(degree / 64 + 1, 0);
      clean_ = false;  // until the caller has cleared `set_`; stays false after an error
      const double* of_row = sums;
      std::int64_t found[kTogether], drawn = 0, left = most_rejections(row.degree);
      for (std::int64_t count = 0; count < picks; ++drawn) {
        if (drawn % kTogether == 0) draw_together(policy, row, of_row, drawn, found);
        const std::int64_t offset = found[drawn % kTogether];
        if (add(offset)) {
          ++count;
          take(offset);
        } else if (--left == 0) {
          if (!remove_picks(sums, degree)) throw_bad_sums();
          of_row = rest_.data();
          left = most_rejections(row.degree);
          draw_together(policy, row, of_row, drawn / kTogether * kTogether, found);  // the draws to come, by the new sums
        }
      }
    }

    // Sets `rest_` to the running sums of the weights of a row without those of its picks; returns false if all are 0.
    bool remove_picks(const double* sums, std::size_t degree) {
      rest_.resize(degree);
      double total = 0, before = 0;
      for (std::size_t i = 0; i < degree; ++i) {
        const bool picked = (set_[i / 64] >> (i % 64) & 1) != 0;
        total += picked ? 0.0 : sums[i] - before;
        before = sums[i];
        rest_[i] = total;
      }
      return total > 0;
    }

    std::array<Job, kMostPicks> jobs_;
    std::array<Far, kMostPicks> far_;
    std::size_t num_jobs_ = 0;
    std::array<Place, 5 * kMostPicks> places_;  // a job of k picks takes at most 2 k + 3
    std::vector<std::uint64_t> set_;            // all 0 between rows, if clean_
    bool clean_ = true;
    std::vector<double> rest_;
    alignas(64) std::array<double, kShortRow> near_;
  };

 private:
  bool draws_again() const { return replace && fanout >= 0; }
};

}  // namespace datapipes
