#include "graph/edge_times.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/inside.h"
#include "common/thread_pool.h"
#include "graph/row_view.h"

namespace datapipes {
namespace {

constexpr std::int64_t kAtOnce = 1 << 16;  // in-edges, or rows, of one turn of a thread

void check_length(const char* name, std::size_t found, std::size_t wanted) {
  if (found != wanted)
    throw std::invalid_argument(std::string("edge_times: ") + name + " has " + std::to_string(found) + " entries; it needs " +
                                std::to_string(wanted) + ".");
}

bool ascends(std::span<const std::int64_t> times, std::int64_t begin, std::int64_t end) {
  return times.empty() || std::is_sorted(times.begin() + begin, times.begin() + end);
}

}  // namespace

template <class Id>
void fill_source_times(std::span<const Id> indices, std::span<const std::int64_t> of_nodes, std::span<std::int64_t> out,
                       int threads) {
  constexpr std::int64_t kAhead = 32;
  check_length("out", out.size(), indices.size());
  in_turns(std::ssize(indices), kAtOnce, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      if (p + kAhead < end) {
        const auto later = static_cast<std::uint64_t>(indices[static_cast<std::size_t>(p + kAhead)]);
        if (later < of_nodes.size()) __builtin_prefetch(&of_nodes[later]);
      }
      const auto at = static_cast<std::size_t>(p);
      const auto source = static_cast<std::uint64_t>(indices[at]);
      if (source >= of_nodes.size()) throw_bad_neighbor("edge_times", p, indices[at], std::ssize(of_nodes));
      out[at] = of_nodes[source];
    }
  });
}

template void fill_source_times(std::span<const std::int32_t>, std::span<const std::int64_t>, std::span<std::int64_t>, int);
template void fill_source_times(std::span<const std::int64_t>, std::span<const std::int64_t>, std::span<std::int64_t>, int);

void find_sorted_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> latest,
                      std::span<const std::int64_t> earliest, std::span<std::uint8_t> sorted, int threads) {
  check_length("indptr", indptr.size(), sorted.size() + 1);
  if (!earliest.empty()) check_length("earliest", earliest.size(), latest.size());
  in_turns(std::ssize(sorted), kAtOnce, threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t begin = indptr[static_cast<std::size_t>(row)], end = indptr[static_cast<std::size_t>(row) + 1];
      if (!is_range_inside(begin, end, std::ssize(latest))) throw_bad_indptr("edge_times", row, begin, end, std::ssize(latest));
      sorted[static_cast<std::size_t>(row)] = ascends(latest, begin, end) && ascends(earliest, begin, end) ? 1 : 0;
    }
  });
}

}  // namespace datapipes
