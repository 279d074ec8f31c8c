#include "graph/edge_times.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kAtOnce = 1 << 16;  // in-edges, or rows, of one turn of a thread

void check_length(const char* name, std::size_t found, std::size_t wanted) {
  if (found != wanted)
    throw std::invalid_argument(std::string("edge_times: ") + name + " has " + std::to_string(found) + " entries; it needs " +
                                std::to_string(wanted) + ".");
}

template <class Work>
void in_turns(std::int64_t count, int threads, Work&& work) {
  parallel_for((count + kAtOnce - 1) / kAtOnce, threads,
               [&](std::int64_t turn) { work(turn * kAtOnce, std::min((turn + 1) * kAtOnce, count)); });
}

[[noreturn]] void throw_bad_source(std::int64_t position, std::int64_t found, std::size_t num_sources) {
  throw std::invalid_argument("edge_times: indices[" + std::to_string(position) + "] is " + std::to_string(found) +
                              ", which must be in [0, " + std::to_string(num_sources) +
                              "). The graph is corrupt: graph.validate() checks all of it.");
}

bool ascends(std::span<const std::int64_t> times, std::int64_t begin, std::int64_t end) {
  return times.empty() || std::is_sorted(times.begin() + begin, times.begin() + end);
}

}  // namespace

template <class Id>
void fill_edge_times(std::span<const Id> indices, std::span<const std::int64_t> of_edges, std::span<const std::int64_t> of_nodes,
                     const EdgeTimesOut& out, int threads) {
  constexpr std::int64_t kAhead = 32;
  check_length("latest", out.latest.size(), indices.size());
  if (!out.earliest.empty()) check_length("earliest", out.earliest.size(), indices.size());
  if (!of_edges.empty()) check_length("of_edges", of_edges.size(), indices.size());
  in_turns(std::ssize(indices), threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      if (p + kAhead < end) {
        const auto later = static_cast<std::uint64_t>(indices[static_cast<std::size_t>(p + kAhead)]);
        if (later < of_nodes.size()) __builtin_prefetch(&of_nodes[later]);
      }
      const auto at = static_cast<std::size_t>(p);
      const auto source = static_cast<std::uint64_t>(indices[at]);
      if (source >= of_nodes.size()) throw_bad_source(p, indices[at], of_nodes.size());
      const std::int64_t of_node = of_nodes[source];
      const std::int64_t of_edge = of_edges.empty() ? of_node : of_edges[at];
      out.latest[at] = std::max(of_node, of_edge);
      if (!out.earliest.empty()) out.earliest[at] = std::min(of_node, of_edge);
    }
  });
}

template void fill_edge_times(std::span<const std::int32_t>, std::span<const std::int64_t>, std::span<const std::int64_t>,
                              const EdgeTimesOut&, int);
template void fill_edge_times(std::span<const std::int64_t>, std::span<const std::int64_t>, std::span<const std::int64_t>,
                              const EdgeTimesOut&, int);

void find_sorted_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> latest,
                      std::span<const std::int64_t> earliest, std::span<std::uint8_t> sorted, int threads) {
  check_length("indptr", indptr.size(), sorted.size() + 1);
  if (!earliest.empty()) check_length("earliest", earliest.size(), latest.size());
  in_turns(std::ssize(sorted), threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t begin = indptr[static_cast<std::size_t>(row)], end = indptr[static_cast<std::size_t>(row) + 1];
      if (begin < 0 || begin > end || end > std::ssize(latest))
        throw std::invalid_argument("edge_times: the in-edges of node " + std::to_string(row) + " are [" + std::to_string(begin) +
                                    ", " + std::to_string(end) + "), which must ascend within [0, " +
                                    std::to_string(latest.size()) +
                                    "]. The graph is corrupt: graph.validate() checks all of it.");
      sorted[static_cast<std::size_t>(row)] = ascends(latest, begin, end) && ascends(earliest, begin, end) ? 1 : 0;
    }
  });
}

}  // namespace datapipes
