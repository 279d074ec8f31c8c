// load.h: load<T>(from): the T whose bytes are at `from`, which need not be aligned to it.
#pragma once

#include <cstring>

namespace datapipes {

template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace datapipes
