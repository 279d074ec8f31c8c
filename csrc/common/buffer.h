// buffer.h: an owned, uninitialised, 64-byte aligned array that a kernel fills and a binding hands out.
//   Arrays of a huge page or more are aligned to it and advised so: a fresh output costs one page fault per 2 MiB instead of 512.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace datapipes {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

inline void* allocate_bytes(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  if (bytes > std::numeric_limits<std::size_t>::max() - alignment) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);  // advice only: without it the memory still works
#endif
  return memory;
}

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) : size_(size) {
    if (size < 0 || static_cast<std::uint64_t>(size) > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_alloc();
    data_ = static_cast<T*>(allocate_bytes(static_cast<std::size_t>(size) * sizeof(T)));
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }
  std::span<const T> first(std::int64_t count) const { return {data_, static_cast<std::size_t>(count)}; }

  // Makes room for `size` entries and keeps the first `used`.
  void grow(std::int64_t size, std::int64_t used) {
    if (size <= size_) return;
    Buffer larger(size);
    if (used > 0) std::memcpy(larger.data_, data_, static_cast<std::size_t>(used) * sizeof(T));
    *this = std::move(larger);
  }
  void shrink(std::int64_t size) { size_ = size; }        // the memory stays; only the visible length changes
  T* release() { return std::exchange(data_, nullptr); }  // the caller frees it with std::free

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace datapipes
