// huge_pages.h: memory aligned to huge pages and advised to use them, for arrays that are read at random. With pages of
// 4 KiB nearly every random access misses the TLB as well as the cache. Requests below a huge page are aligned to a
// cache line.
//   allocate_aligned(bytes) and free_aligned(memory, bytes), with the same `bytes`. Memory of a huge page or more has
//   its own mapping; freeing returns it to the system at once.
// Throws std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace datapipes {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

inline std::size_t rounded_up(std::size_t bytes, std::size_t step) {
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * step) throw std::bad_alloc();
  return bytes == 0 ? step : (bytes + step - 1) / step * step;
}

inline void* allocate_aligned(std::size_t bytes) {
  void* memory = nullptr;
#if defined(__linux__)
  if (bytes >= kHugePage) {
    const std::size_t wanted = rounded_up(bytes, kHugePage), mapped = wanted + kHugePage;
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* const begin = static_cast<char*>(memory);
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    if (before > 0) munmap(begin, before);
    if (before < kHugePage) munmap(begin + before + wanted, kHugePage - before);
    (void)madvise(begin + before, wanted, MADV_HUGEPAGE);  // advice only: the memory works without it
    return begin + before;
  }
#endif
  memory = std::aligned_alloc(64, rounded_up(bytes, 64));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

inline void free_aligned(void* memory, std::size_t bytes) noexcept {
#if defined(__linux__)
  if (bytes >= kHugePage) {
    munmap(memory, rounded_up(bytes, kHugePage));
    return;
  }
#endif
  (void)bytes;
  std::free(memory);
}

// Advises the system to use huge pages for memory that lies at any address.
inline void advise_huge_pages(void* memory, std::size_t bytes) noexcept {
#if defined(__linux__)
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage, end = (begin + bytes) / kHugePage * kHugePage;
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
  (void)memory;
  (void)bytes;
}

// For containers that a kernel keeps from one minibatch to the next.
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
  void deallocate(T* memory, std::size_t count) { free_aligned(memory, count * sizeof(T)); }
  bool operator==(const HugePageAllocator&) const = default;
};

}  // namespace datapipes
