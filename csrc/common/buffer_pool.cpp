#include "common/buffer_pool.h"

#include <algorithm>
#include <new>

#include "common/huge_pages.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#if defined(__SANITIZE_ADDRESS__)  // poison idle blocks and the bytes past the requested size
#include <sanitizer/asan_interface.h>
#define DATAPIPES_POISON(memory, bytes) __asan_poison_memory_region(memory, bytes)
#define DATAPIPES_UNPOISON(memory, bytes) __asan_unpoison_memory_region(memory, bytes)
#else
#define DATAPIPES_POISON(memory, bytes) (void)(memory)
#define DATAPIPES_UNPOISON(memory, bytes) (void)(memory)
#endif

namespace datapipes {
namespace {

// Output sizes vary a little between minibatches. Rounding to steps of about an eighth lets one block serve all of
// them.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = 64;
  if (bytes >= BufferPool::kSmallest) {
    while (step <= bytes / 16) step *= 2;
    if (bytes >= kHugePage) step = std::max(step, kHugePage);
  }
  return rounded_up(bytes, step);
}

Block allocate(std::size_t bytes) { return {allocate_aligned(bytes), bytes}; }

}  // namespace

BufferPool& BufferPool::instance() {
  static BufferPool* const pool = [] {
    auto* const made = new BufferPool();
#if !defined(_WIN32)
    // A thread of the parent may hold the lock while another one forks. Holding it across fork() leaves it free in the
    // child.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); }, [] { instance().mutex_.unlock(); });
#endif
    return made;
  }();
  return *pool;
}

Block BufferPool::take(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
  if (wanted < kSmallest) return allocate(wanted);
  {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->block.bytes < wanted || it->block.bytes / 2 > wanted) continue;
      if (best == idle_.end() || it->block.bytes < best->block.bytes ||
          (it->block.bytes == best->block.bytes && it->since > best->since))
        best = it;
    }
    if (best != idle_.end()) {
      const Block block = best->block;
      *best = idle_.back();
      idle_.pop_back();
      stats_.idle_bytes -= block.bytes;
      ++stats_.reused;
      count_in_use(block.bytes);
      DATAPIPES_UNPOISON(block.memory, bytes);
      return block;
    }
  }
  Block block;
  try {
    block = allocate(wanted);
  } catch (const std::bad_alloc&) {  // free the idle blocks and try once more
    trim();
    block = allocate(wanted);
  }
  DATAPIPES_POISON(static_cast<char*>(block.memory) + bytes, wanted - bytes);
  const std::lock_guard lock(mutex_);
  ++stats_.fresh;
  count_in_use(wanted);
  return block;
}

void BufferPool::count_in_use(std::size_t bytes) {
  stats_.in_use_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.in_use_bytes);
}

void BufferPool::give(Block block) noexcept {
  if (block.memory == nullptr) return;
  if (block.bytes < kSmallest) return free_aligned(block.memory, block.bytes);
  const auto drop = [](Block dropped) {
    DATAPIPES_UNPOISON(dropped.memory, dropped.bytes);
    free_aligned(dropped.memory, dropped.bytes);
  };
  bool kept = false;
  {
    const std::lock_guard lock(mutex_);
    stats_.in_use_bytes -= block.bytes;
    if (block.bytes <= most_idle()) {  // a larger block would evict all others
      try {
        idle_.push_back({block, clock_++});
        stats_.idle_bytes += block.bytes;
        DATAPIPES_POISON(block.memory, block.bytes);
        kept = true;
      } catch (const std::bad_alloc&) {  // no memory for the list entry: free the block instead
      }
    }
  }
  if (!kept) return drop(block);
  for (;;) {  // evict one block per round, so that freeing (an unmap) happens outside the lock and needs no memory
    Block evicted;
    {
      const std::lock_guard lock(mutex_);
      if (stats_.idle_bytes <= most_idle()) return;
      const auto oldest =
          std::min_element(idle_.begin(), idle_.end(), [](const Idle& a, const Idle& b) { return a.since < b.since; });
      evicted = oldest->block;
      stats_.idle_bytes -= evicted.bytes;
      *oldest = idle_.back();
      idle_.pop_back();
    }
    drop(evicted);
  }
}

void BufferPool::trim() noexcept {
  std::vector<Idle> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(idle_);
    stats_.idle_bytes = 0;
  }
  for (const Idle& idle : dropped) {
    DATAPIPES_UNPOISON(idle.block.memory, idle.block.bytes);
    free_aligned(idle.block.memory, idle.block.bytes);
  }
}

BufferPool::Stats BufferPool::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace datapipes
