// buffer_pool.h: recycles the memory of large outputs. Fresh memory costs a page fault and a cleared page for every page that is
// written, which is more than a gather into it; memory that an earlier minibatch used costs neither.
//   take(bytes): 64-byte aligned memory of at least `bytes`; give(memory): back, from any thread.
//   Blocks of kSmallest and more are recycled: one is reused for a wish of at least half its size, the tightest and then the
//   latest first. Blocks of a huge page and more are aligned to huge pages and advised so.
//   Bound: the pool keeps no more idle bytes than were in use at once, nor more than kMostIdle; the longest idle go first.
// Throws std::bad_alloc. Survives a fork: the child inherits its own copy of the pool, unlocked (private pages, so giving back
// there frees nothing of the parent's). Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace datapipes {

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;  // what it can hold; 0: none
};

class BufferPool {
 public:
  static constexpr std::size_t kSmallest = std::size_t{1} << 17;  // below it malloc recycles well itself
  static constexpr std::size_t kMostIdle = std::size_t{1} << 30;

  struct Stats {
    std::size_t in_use_bytes = 0, idle_bytes = 0, peak_bytes = 0;  // peak: most bytes in use at once
    std::uint64_t reused = 0, fresh = 0;                           // wishes met from idle blocks, and by new memory
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
  void count_in_use(std::size_t bytes);  // these two under the lock
  std::size_t most_idle() const { return stats_.peak_bytes < kMostIdle ? stats_.peak_bytes : kMostIdle; }

  std::mutex mutex_;
  std::vector<Idle> idle_;
  std::uint64_t clock_ = 0;
  Stats stats_;
};

}  // namespace datapipes
