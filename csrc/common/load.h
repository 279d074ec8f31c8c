// load.h: reads values from unaligned or shared memory.
//   load<T>(from): the T whose bytes are at `from`, which need not be aligned for T.
//   read_once(value): one read, which the compiler may not repeat. Ids of a received message lie in a shared segment, where a
//   faulty process may overwrite them at any moment: the value that was checked must be the value that is used.
#pragma once

#include <atomic>
#include <cstring>

namespace datapipes {

template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline T read_once(const T& value) {
  return std::atomic_ref<T>(const_cast<T&>(value)).load(std::memory_order_relaxed);
}

}  // namespace datapipes
