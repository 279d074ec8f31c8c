// plain_push.cpp: personalised PageRank by the textbook's push, as benchmarks/subgraphs.py measures it beside sample_ppr.
//   A queue of nodes whose residual is at least eps * in-degree; scores and residuals of a seed are doubles, in a hash map, or in
//   arrays of all nodes. Returns the number of edges along which mass was pushed. k nodes of each seed, -1 and 0 fill up.
//   And a pass over the in-edges of nodes, as the least time in which their edges can be found.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct Mass {
  double score = 0, residual = 0;
  bool is_queued = false, is_touched = false;
};

struct Map {
  std::unordered_map<std::int64_t, Mass> masses;
  explicit Map(std::int64_t) {}
  Mass& operator[](std::int64_t node) { return masses[node]; }
  template <class Use>
  void drain(Use&& use) {
    for (const auto& [node, mass] : masses) use(node, mass);
    masses = {};
  }
};

struct Arrays {
  std::vector<Mass> masses;
  std::vector<std::int64_t> touched;
  explicit Arrays(std::int64_t num_nodes) : masses(static_cast<std::size_t>(num_nodes)) {}
  Mass& operator[](std::int64_t node) {
    Mass& mass = masses[static_cast<std::size_t>(node)];
    if (!mass.is_touched) touched.push_back(node);
    mass.is_touched = true;
    return mass;
  }
  template <class Use>
  void drain(Use&& use) {
    for (const auto node : touched) use(node, std::exchange(masses[static_cast<std::size_t>(node)], {}));
    touched.clear();
  }
};

template <class Masses>
std::int64_t push(const std::int64_t* indptr, const std::int64_t* indices, std::int64_t num_nodes, const std::int64_t* seeds,
                  std::int64_t num_seeds, double alpha, double eps, std::int64_t k, std::int64_t* ids, float* scores) {
  std::int64_t num_edges = 0;
  Masses masses(num_nodes);
  for (std::int64_t s = 0; s < num_seeds; ++s) {
    std::deque<std::int64_t> queue{seeds[s]};
    masses[seeds[s]].residual = 1;
    while (!queue.empty()) {
      const std::int64_t node = queue.front(), begin = indptr[node], end = indptr[node + 1];
      queue.pop_front();
      Mass& mass = masses[node];
      mass.is_queued = false;
      const double rest = std::exchange(mass.residual, 0);
      mass.score += begin == end ? rest : alpha * rest;
      num_edges += end - begin;
      for (std::int64_t e = begin; e < end; ++e) {
        Mass& source = masses[indices[e]];
        source.residual += (1 - alpha) * rest / static_cast<double>(end - begin);
        const std::int64_t degree = indptr[indices[e] + 1] - indptr[indices[e]];
        if (source.is_queued || source.residual < eps * static_cast<double>(std::max<std::int64_t>(degree, 1))) continue;
        source.is_queued = true;
        queue.push_back(indices[e]);
      }
    }
    std::vector<std::pair<double, std::int64_t>> best;
    masses.drain([&](std::int64_t node, const Mass& mass) {
      if (mass.score > 0) best.push_back({-mass.score, node});
    });
    const auto most = std::min(k, static_cast<std::int64_t>(best.size()));
    std::partial_sort(best.begin(), best.begin() + most, best.end());
    for (std::int64_t i = 0; i < k; ++i) {
      ids[s * k + i] = i < most ? best[static_cast<std::size_t>(i)].second : -1;
      scores[s * k + i] = i < most ? static_cast<float>(-best[static_cast<std::size_t>(i)].first) : 0;
    }
  }
  return num_edges;
}

}  // namespace

extern "C" std::int64_t push_in_map(const std::int64_t* indptr, const std::int64_t* indices, std::int64_t num_nodes,
                                    const std::int64_t* seeds, std::int64_t num_seeds, double alpha, double eps, std::int64_t k,
                                    std::int64_t* ids, float* scores) {
  return push<Map>(indptr, indices, num_nodes, seeds, num_seeds, alpha, eps, k, ids, scores);
}

extern "C" std::int64_t push_in_arrays(const std::int64_t* indptr, const std::int64_t* indices, std::int64_t num_nodes,
                                       const std::int64_t* seeds, std::int64_t num_seeds, double alpha, double eps,
                                       std::int64_t k, std::int64_t* ids, float* scores) {
  return push<Arrays>(indptr, indices, num_nodes, seeds, num_seeds, alpha, eps, k, ids, scores);
}

// The sum of the sources of all in-edges of `nodes`.
extern "C" std::int64_t read_in_edges(const std::int64_t* indptr, const std::int64_t* indices, const std::int64_t* nodes,
                                      std::int64_t num_nodes) {
  constexpr std::int64_t kAhead = 8;  // rows to prefetch ahead
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < num_nodes; ++i) {
    for (std::int64_t k = 0; i + kAhead < num_nodes && k < 64; k += 8)
      __builtin_prefetch(indices + indptr[nodes[i + kAhead]] + k);
    for (std::int64_t e = indptr[nodes[i]]; e < indptr[nodes[i] + 1]; ++e) sum += indices[e];
  }
  return sum;
}
