// huge_pages.h: memory aligned to huge pages and advised so, for arrays that are read at random: with pages of 4 KiB nearly every
// random access misses the TLB as well as the cache. Smaller wishes are aligned to a cache line.
// Throws std::bad_alloc. What it returns is freed with std::free.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace datapipes {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

inline void* allocate_aligned(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  if (bytes > std::numeric_limits<std::size_t>::max() - alignment) throw std::bad_alloc();
  const std::size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);  // advice only: without it the memory still works
#endif
  return memory;
}

// For the containers of a kernel that stay from one minibatch to the next.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}
  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_aligned(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const HugePageAllocator&) const = default;
};

}  // namespace datapipes
