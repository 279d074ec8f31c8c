// buffer_pool.h: recycles the memory of large outputs. Every page of fresh memory costs a page fault and a clearing
// when it is first written, together more than a gather into it. Recycled memory costs neither.
//   take(bytes) returns 64-byte aligned memory of at least `bytes`. give(block) returns it to the pool, from any
//   thread.
//   Blocks of kSmallest bytes and more are recycled. A block serves a request of at least half its size. Among the
//   blocks that fit, the smallest is taken, and of equal ones the one returned last. Blocks of a huge page and more are
//   aligned to huge pages and advised to use them.
//   Bound: the pool keeps at most as many idle bytes as were ever in use at once, and at most kMostIdle. The longest
//   idle blocks are freed first.
// Throws std::bad_alloc. Survives a fork: the child inherits its own unlocked copy of the pool. Its pages are private,
// so giving a block back there frees nothing of the parent's. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace datapipes {

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;  // capacity; 0: no block
};

class BufferPool {
 public:
  static constexpr std::size_t kSmallest = std::size_t{1} << 17;  // malloc itself recycles smaller blocks well
  static constexpr std::size_t kMostIdle = std::size_t{1} << 30;

  struct Stats {
    std::size_t in_use_bytes = 0, idle_bytes = 0, peak_bytes = 0;  // peak: most bytes in use at once
    std::uint64_t reused = 0, fresh = 0;                           // requests served by idle blocks, and by new memory
  };

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool() { trim(); }

  static BufferPool& instance();  // the process's pool; never destroyed, since tensors may outlive everything else

  Block take(std::size_t bytes);
  void give(Block block) noexcept;
  void trim() noexcept;  // frees all idle blocks
  Stats stats();

 private:
  struct Idle {
    Block block;
    std::uint64_t since;
  };
  void count_in_use(std::size_t bytes);  // this and the next function: under the lock
  std::size_t most_idle() const { return stats_.peak_bytes < kMostIdle ? stats_.peak_bytes : kMostIdle; }

  std::mutex mutex_;
  std::vector<Idle> idle_;
  std::uint64_t clock_ = 0;
  Stats stats_;
};

}  // namespace datapipes
