// memory_left.h: the memory that this process may still take, and the limit that applies: the machine, a cgroup (version 1 or
// 2) of the process or above it, or the limit of its address space. Callers check before they reserve, so a shortage raises an
// error instead of a kill by the system.
//   root: the folder that holds /proc and /sys, "" for this machine's own
// Files that cannot be read set no limit.
#pragma once

#include <cstdint>
#include <string>

namespace datapipes::shm {

struct MemoryLeft {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::string limit = "nothing";  // the limit that sets `bytes`, for errors
};

MemoryLeft memory_left(const std::string& root = "");

}  // namespace datapipes::shm
