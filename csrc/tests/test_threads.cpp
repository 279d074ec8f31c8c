// test_threads.cpp: the thread pool; results of the kernels do not depend on the number of threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/thread_pool.h"
#include "gather/gather_rows.h"
#include "limits/read_lines.h"
#include "sampling/draw_hop.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"
#include "tests/check.h"

namespace datapipes {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3, 8};

void every_part_is_done_once() {
  for (const int threads : kThreadCounts) {
    for (const std::int64_t count : {0, 1, 2, 1'000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(count));
      parallel_for(count, threads, [&](std::int64_t i) { ++done[static_cast<std::size_t>(i)]; });
      bool once = true;
      for (const auto& times : done) once &= times == 1;
      CHECK(once);
    }
  }
}

void products_are_consumed_in_order_on_the_calling_thread() {
  for (const int threads : kThreadCounts) {
    for (const std::int64_t count : {0, 1, 2, 500}) {
      std::vector<std::int64_t> products(static_cast<std::size_t>(count), -1), consumed;
      const auto caller = std::this_thread::get_id();
      bool here = true;
      in_order(
          count, threads, [&](std::int64_t i) { products[static_cast<std::size_t>(i)] = i * i; },
          [&](std::int64_t i) {
            here &= std::this_thread::get_id() == caller;
            consumed.push_back(products[static_cast<std::size_t>(i)]);
          });
      bool ordered = std::ssize(consumed) == count;
      for (std::int64_t i = 0; i < std::ssize(consumed); ++i) ordered &= consumed[static_cast<std::size_t>(i)] == i * i;
      CHECK(ordered);
      CHECK(here);
    }
  }
}

template <class Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

void of_several_errors_the_first_one_arrives() {
  for (const int threads : kThreadCounts) {
    for (int round = 0; round < 50; ++round) {
      const auto fail_from_70 = [](std::int64_t i) {
        if (i >= 70) throw std::runtime_error(std::to_string(i));
      };
      std::int64_t consumed = 0;
      CHECK(message_of([&] { parallel_for(1'000, threads, fail_from_70); }) == "70");
      CHECK(message_of([&] { in_order(1'000, threads, fail_from_70, [&](std::int64_t) { ++consumed; }); }) == "70");
      CHECK(consumed == 70);
      CHECK(message_of([&] { in_order(100, threads, [](std::int64_t) {}, fail_from_70); }) == "70");
    }
  }
}

void an_error_of_consume_stops_the_draws() {
  constexpr std::int64_t kCount = 20'000;
  constexpr int kMostTurns = 1'000'000;  // bounds the wait for the second thread, which may never come
  const auto caller = std::this_thread::get_id();
  bool stopped = false;
  for (int round = 0; round < 20 && !stopped; ++round) {  // one round is enough, unless this thread has to wait for a processor
    std::atomic<std::int64_t> begun{0};
    std::atomic<bool> helped{false}, thrown{false};
    const auto produce = [&](std::int64_t i) {
      ++begun;
      if (i == 0 || std::this_thread::get_id() == caller) return;
      helped = true;
      do std::this_thread::yield();
      while (!thrown);
    };
    const auto consume = [&](std::int64_t) {
      for (int turn = 0; turn < kMostTurns && !helped; ++turn) std::this_thread::yield();
      thrown = true;
      throw std::runtime_error("consume");
    };
    CHECK(message_of([&] { in_order(kCount, 2, produce, consume); }) == "consume");
    stopped = helped && begun < kCount;
  }
  CHECK(stopped);
}

void many_callers_share_the_threads() {
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&sum] {
      for (int round = 0; round < 50; ++round) {
        parallel_for(40, 4, [&sum](std::int64_t i) {
          parallel_for(3, 3, [&sum, i](std::int64_t j) { sum += i * j; });  // the work may use the pool itself
        });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(sum == 6 * 50 * 3 * (39 * 40 / 2));
}

void a_forked_child_starts_threads_of_its_own() {
#if defined(__SANITIZE_THREAD__)
  return std::puts("  skipped: ThreadSanitizer allows no threads after a fork"), void();
#endif
#if defined(__SANITIZE_ADDRESS__)  // the build with UBSan alone runs this
  return std::puts("  skipped: another thread may hold AddressSanitizer's allocator at the fork, and the child hangs"), void();
#endif
  std::atomic<int> before{0};
  parallel_for(100, 4, [&](std::int64_t) { ++before; });
  std::atomic<bool> stop = false;
  std::thread busy([&stop] {
    while (!stop) parallel_for(50, 4, [](std::int64_t) {});
  });
  int failed = 0;
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that hangs is killed
      std::atomic<int> done{0};
      parallel_for(100, 4, [&](std::int64_t) { ++done; });
      _exit(done == 100 ? 0 : 1);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  stop = true;
  busy.join();
  CHECK(failed == 0);
}

template <class Id>
struct LargeGraph {
  std::vector<std::int64_t> indptr{0};
  std::vector<Id> indices;
  RowView<Id> view() const { return {indptr, indices, std::ssize(indptr) - 1}; }
};

template <class Id>
LargeGraph<Id> large_graph(std::int64_t num_nodes) {
  LargeGraph<Id> graph;
  std::uint64_t state = 1;
  for (std::int64_t v = 0; v < num_nodes; ++v) {
    const std::int64_t degree = v == 7 ? 30'000 : v * v % 41;
    for (std::int64_t i = 0; i < degree; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      graph.indices.push_back(static_cast<Id>((state >> 33) % static_cast<std::uint64_t>(num_nodes)));
    }
    graph.indptr.push_back(std::ssize(graph.indices));
  }
  return graph;
}

template <class T>
bool same(const Buffer<T>& one, const Buffer<T>& other) {
  return one.size() == other.size() && std::equal(one.data(), one.data() + one.size(), other.data());
}

template <class Id>
void a_minibatch_is_the_same_for_any_number_of_threads() {
  const auto graph = large_graph<Id>(20'000);
  std::vector<std::int64_t> seeds, edge_ids(graph.indices.size());
  for (std::int64_t i = 0; i < 3'000; ++i) seeds.push_back(i * 7 % 20'000);
  for (std::size_t i = 0; i < edge_ids.size(); ++i) edge_ids[i] = static_cast<std::int64_t>(3 * i + 1);
  const RowView<Id> rows = graph.view();
  const Topology<Id> topology{{{"a", rows.num_rows()}, {"b", rows.num_rows()}},
                              {{"a:to:a", 0, 0, rows, edge_ids}, {"a:to:b", 0, 1, rows, {}}, {"b:to:a", 1, 0, rows, edge_ids}}};
  const std::vector<Seeds> of_types{{1, std::span(seeds).first(100)}, {0, seeds}};
  for (const bool only_new : {false, true}) {
    for (const std::int64_t fanout : {8LL, 40LL, -1LL}) {
      NeighborsRequest request;
      request.sampled = {0, 1, 2};
      request.hops = {{Uniform{5, false, 11}, Uniform{4, false, 21}, Uniform{3, true, 31}},
                      {Uniform{fanout, fanout == 8, 12}, Uniform{0, false, 22}, Uniform{2, false, 32}},
                      {Uniform{7, false, 13}, Uniform{6, true, 23}, Uniform{0, false, 33}}};
      request.only_new = only_new;
      request.want_edge_ids = true;
      const auto alone = sample_neighbors(topology, of_types, request);
      CHECK(alone.hops.back()[0].indices.size() > 2 * kParallelPicks || only_new);
      for (const int threads : kThreadCounts) {
        request.threads = threads;
        for (const std::int64_t limit : {std::int64_t{0}, kDirectMapLimit}) {
          request.direct_limit = limit;
          const auto shared = sample_neighbors(topology, of_types, request);
          for (std::size_t type = 0; type < 2; ++type) {
            CHECK(same(shared.nodes[type], alone.nodes[type]));
            CHECK(same(shared.compacted_seeds[type], alone.compacted_seeds[type]));
          }
          for (std::size_t i = 0; i < 9; ++i) {
            const auto &block = shared.hops[i / 3][i % 3], &expected = alone.hops[i / 3][i % 3];
            CHECK(same(block.indptr, expected.indptr) && same(block.indices, expected.indices));
            CHECK(same(block.edge_ids, expected.edge_ids) && block.num_src == expected.num_src);
          }
        }
      }
    }
  }
}

template <class Id>
void edges_among_seeds_are_those_of_the_whole_hop() {
  const auto graph = large_graph<Id>(20'000);
  std::vector<std::int64_t> seeds, edge_ids(graph.indices.size());
  for (std::int64_t i = 0; i < 3'000; ++i) seeds.push_back(i * 7 % 20'000);
  for (std::size_t i = 0; i < edge_ids.size(); ++i) edge_ids[i] = static_cast<std::int64_t>(3 * i + 1);
  const RowView<Id> rows = graph.view();
  const Topology<Id> topology{{{"", rows.num_rows()}}, {{"", 0, 0, rows, edge_ids}}};
  const Seeds of_type{0, seeds};
  for (const std::int64_t fanout : {7LL, -1LL}) {
    NeighborsRequest request{{.sampled = {0}, .want_edge_ids = true}};
    request.hops = {{Uniform{fanout, false, 11}}};
    const auto whole = sample_neighbors(topology, {&of_type, 1}, request);
    const auto& hop = whole.hops[0][0];
    std::vector<std::int64_t> indptr{0}, sources, ids;
    for (std::int64_t d = 0; d < 3'000; ++d) {
      for (std::int64_t i = hop.indptr[d]; i < hop.indptr[d + 1]; ++i) {
        if (hop.indices[i] >= 3'000) continue;
        sources.push_back(hop.indices[i]);
        ids.push_back(hop.edge_ids[i]);
      }
      indptr.push_back(std::ssize(sources));
    }
    CHECK(std::ssize(sources) > 100 && std::ssize(sources) < hop.indices.size() / 2);
    request.only_among = true;
    for (const int threads : kThreadCounts) {
      request.threads = threads;
      for (const std::int64_t limit : {std::int64_t{0}, kDirectMapLimit}) {
        request.direct_limit = limit;
        const auto among = sample_neighbors(topology, {&of_type, 1}, request);
        const auto& block = among.hops[0][0];
        CHECK(std::ranges::equal(block.indptr.first(block.indptr.size()), indptr));
        CHECK(std::ranges::equal(block.indices.first(block.indices.size()), sources));
        CHECK(std::ranges::equal(block.edge_ids.first(block.edge_ids.size()), ids));
        CHECK(block.num_src == 3'000 && among.nodes[0].size() == 3'000);
      }
    }
  }
}

template <class Id>
void a_hop_and_its_errors_are_the_same_for_any_number_of_threads() {
  auto graph = large_graph<Id>(20'000);
  std::vector<std::int64_t> seeds;
  for (std::int64_t i = 0; i < 15'000; ++i) seeds.push_back(i * 3 % 20'000);
  const auto alone = sample_hop<Id>(graph.view(), seeds, Uniform{6, false, 5});
  for (const int threads : kThreadCounts) {
    const auto shared = sample_hop<Id>(graph.view(), seeds, Uniform{6, false, 5}, threads);
    CHECK(same(shared.indptr, alone.indptr) && same(shared.neighbors, alone.neighbors) &&
          same(shared.positions, alone.positions));
  }
  for (std::size_t i = graph.indices.size() / 4; i < graph.indices.size(); i += 50) graph.indices[i] = -1;
  const auto corrupt = [&](int threads) {
    return message_of([&] { sample_hop<Id>(graph.view(), seeds, Uniform{6, false, 5}, threads); });
  };
  const std::string wanted = corrupt(1);
  CHECK(wanted.find("indices[") != std::string::npos);
  for (const int threads : kThreadCounts) CHECK(corrupt(threads) == wanted);
  seeds[14'000] = seeds[9'000] = 20'000;
  const auto outside = [&](int threads) {
    return message_of([&] { sample_hop<Id>(graph.view(), seeds, Uniform{6, false, 5}, threads); });
  };
  for (const int threads : kThreadCounts) CHECK(outside(threads) == outside(1));
}

void rows_are_the_same_for_any_number_of_threads() {
  for (const std::int64_t row_bytes : {3, 4, 16, 48, 400}) {
    const std::int64_t num_rows = 50'000;
    std::vector<std::byte> table(static_cast<std::size_t>(num_rows * row_bytes));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 31 % 251);
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 600'000 / (1 + row_bytes / 64); ++i) ids.push_back(i * 7'919 % num_rows);
    std::vector<std::byte> alone(ids.size() * static_cast<std::size_t>(row_bytes)), shared(alone.size());
    const RowTable rows{table.data(), num_rows, row_bytes, row_bytes};
    gather_rows<std::int64_t>(rows, ids, alone.data());
    bool right = true;
    for (std::size_t i = 0; i < ids.size(); i += 97) {
      const auto size = static_cast<std::size_t>(row_bytes);
      right &= equal_bytes(alone.data() + i * size, table.data() + static_cast<std::size_t>(ids[i]) * size, size);
    }
    CHECK(right);
    for (const int threads : kThreadCounts) {
      gather_rows<std::int64_t>(rows, ids, shared.data(), threads);
      CHECK(equal_bytes(shared.data(), alone.data(), alone.size()));
      if (shared.size() < 2) continue;  // an output that is not aligned takes the plain copy
      std::vector<std::byte> shifted(shared.size() + 1);
      gather_rows<std::int64_t>(rows, ids, shifted.data() + 1, threads);
      CHECK(equal_bytes(shifted.data() + 1, alone.data(), alone.size()));
    }
  }
}

void lines_are_read_within_the_memory() {
  std::vector<std::uint8_t> memory(640);
  memory[64 * 9] = 5;
  std::vector<std::uint32_t> lines(40'000, 9);
  for (const int threads : kThreadCounts) CHECK(read_lines(memory, lines, threads) == 200'000);
  lines.back() = 10;
  CHECK_THROWS(std::out_of_range, read_lines(memory, lines));
}

}  // namespace

SUITE(test_threads) {
  RUN(every_part_is_done_once);
  RUN(products_are_consumed_in_order_on_the_calling_thread);
  RUN(of_several_errors_the_first_one_arrives);
  RUN(an_error_of_consume_stops_the_draws);
  RUN(many_callers_share_the_threads);
  RUN(a_forked_child_starts_threads_of_its_own);
  RUN_FOR_BOTH_IDS(a_minibatch_is_the_same_for_any_number_of_threads);
  RUN_FOR_BOTH_IDS(edges_among_seeds_are_those_of_the_whole_hop);
  RUN_FOR_BOTH_IDS(a_hop_and_its_errors_are_the_same_for_any_number_of_threads);
  RUN(rows_are_the_same_for_any_number_of_threads);
  RUN(lines_are_read_within_the_memory);
}

}  // namespace datapipes
