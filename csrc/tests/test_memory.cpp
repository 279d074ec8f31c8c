// test_memory.cpp: the recycling pool behind all outputs.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "common/buffer.h"
#include "common/buffer_pool.h"
#include "tests/check.h"

namespace datapipes {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;

void memory_that_was_given_back_is_used_again() {
  BufferPool pool;
  const Block first = pool.take(5 * kMega);
  std::memset(first.memory, 1, 5 * kMega);
  pool.give(first);
  const Block second = pool.take(4 * kMega);
  CHECK(second.memory == first.memory);
  const Block third = pool.take(4 * kMega);
  CHECK(third.memory != first.memory);
  CHECK(pool.stats().reused == 1);
  CHECK(pool.stats().fresh == 2);
  pool.give(second);
  const Block small = pool.take(kMega);  // less than half of the idle block
  CHECK(small.memory != first.memory);
  pool.give(small);
  pool.give(third);
}

void blocks_are_aligned_and_large_enough_at_every_size() {
  BufferPool pool;
  std::vector<Block> blocks;
  for (std::size_t bytes = 0; bytes < 40 * kMega; bytes = bytes * 9 / 8 + 1) {
    const Block block = pool.take(bytes);
    CHECK(block.bytes >= bytes);
    CHECK(block.bytes <= std::max(bytes + bytes / 7 + 64, bytes < 2 * kMega ? 0 : bytes + 2 * kMega));
    CHECK(reinterpret_cast<std::uintptr_t>(block.memory) % 64 == 0);
    CHECK(bytes < 2 * kMega || reinterpret_cast<std::uintptr_t>(block.memory) % (2 * kMega) == 0);
    std::memset(block.memory, 7, bytes);
    blocks.push_back(block);
  }
  for (const Block& block : blocks) pool.give(block);
}

void idle_memory_is_bounded_by_what_was_in_use() {
  BufferPool pool;
  for (std::size_t round = 1; round < 60; ++round) {
    const Block one = pool.take(round * kMega), other = pool.take(2 * round * kMega);
    pool.give(one);
    pool.give(other);
    CHECK(pool.stats().in_use_bytes == 0);
    CHECK(pool.stats().idle_bytes <= pool.stats().peak_bytes);
  }
  pool.trim();
  CHECK(pool.stats().idle_bytes == 0);
}

void a_block_above_the_bound_leaves_the_others_alone() {
  BufferPool pool;
  const std::size_t over = BufferPool::kMostIdle + 4 * kMega;
  const Block small = pool.take(3 * kMega), large = pool.take(over);  // reserved, never written
  pool.give(small);
  pool.give(large);
  CHECK(pool.stats().idle_bytes == small.bytes);
  CHECK(pool.take(3 * kMega).memory == small.memory);
  pool.give(small);
}

void a_wish_that_cannot_be_met_is_refused_and_leaves_the_pool_whole() {
  BufferPool pool;
  pool.give(pool.take(kMega));
  CHECK_THROWS(std::bad_alloc, pool.take(std::numeric_limits<std::size_t>::max()));
  CHECK_THROWS(std::bad_alloc, Buffer<std::int64_t>(std::numeric_limits<std::int64_t>::max()));
  CHECK_THROWS(std::bad_alloc, Buffer<std::int64_t>(-1));
  CHECK_THROWS(std::bad_alloc, pool.take(std::size_t{1} << 60));
  CHECK(pool.stats().in_use_bytes == 0);
  CHECK(pool.stats().peak_bytes == kMega);
  CHECK(pool.stats().fresh == 1);
}

void threads_share_the_pool() {
  std::vector<std::thread> threads;
  std::atomic<bool> clean = true;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &clean] {
      for (std::int64_t i = 0; i < 200; ++i) {
        Buffer<std::int64_t> one(20'000 + i * 10), other(30'000);
        for (std::int64_t at = 0; at < one.size(); at += 500) one[at] = t;
        for (std::int64_t at = 0; at < other.size(); at += 500) other[at] = -t;
        for (std::int64_t at = 0; at < one.size(); at += 500)
          if (one[at] != t) clean = false;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(clean);
}

void a_forked_child_may_use_and_give_back_what_it_inherits() {
  std::atomic<bool> stop = false;
  std::thread busy([&stop] {
    while (!stop) Buffer<std::int64_t> held(50'000);
  });
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    auto* const inherited = new Buffer<std::int64_t>(100'000);
    (*inherited)[0] = 42;
    const pid_t child = fork();
    if (child == 0) {
      const bool good = (*inherited)[0] == 42;
      delete inherited;
      Buffer<std::int64_t> own(100'000);
      own[0] = 1;
      _exit(good ? 0 : 1);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++failed;
    if ((*inherited)[0] != 42) ++failed;
    delete inherited;
  }
  stop = true;
  busy.join();
  CHECK(failed == 0);
}

}  // namespace

SUITE(test_memory) {
  RUN(memory_that_was_given_back_is_used_again);
  RUN(blocks_are_aligned_and_large_enough_at_every_size);
  RUN(idle_memory_is_bounded_by_what_was_in_use);
  RUN(a_block_above_the_bound_leaves_the_others_alone);
  RUN(a_wish_that_cannot_be_met_is_refused_and_leaves_the_pool_whole);
  RUN(threads_share_the_pool);
  RUN(a_forked_child_may_use_and_give_back_what_it_inherits);
}

}  // namespace datapipes
