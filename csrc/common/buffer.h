// buffer.h: an owned, uninitialised, 64-byte aligned array. A kernel fills it and a binding hands it out. Its memory
// comes from the recycling pool (buffer_pool.h) and returns there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <utility>

#include "common/buffer_pool.h"

namespace datapipes {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) : size_(size) {
    if (size < 0 || static_cast<std::uint64_t>(size) > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_alloc();
    block_ = BufferPool::instance().take(static_cast<std::size_t>(size) * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept : block_(std::exchange(other.block_, {})), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (block_.memory != nullptr) BufferPool::instance().give(block_);
  }

  T* data() { return static_cast<T*>(block_.memory); }
  const T* data() const { return static_cast<const T*>(block_.memory); }
  std::int64_t size() const { return size_; }
  T& operator[](std::int64_t i) { return data()[i]; }
  const T& operator[](std::int64_t i) const { return data()[i]; }
  std::span<const T> first(std::int64_t count) const { return {data(), static_cast<std::size_t>(count)}; }

  // At most the capacity: the memory stays, only the visible length changes.
  void resize(std::int64_t size) { size_ = size; }
  std::int64_t capacity() const { return static_cast<std::int64_t>(block_.bytes / sizeof(T)); }

 private:
  Block block_;
  std::int64_t size_ = 0;
};

}  // namespace datapipes
