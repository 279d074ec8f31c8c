// memory_left.h: how much memory this process may still take, and what sets the limit: the machine, a cgroup
// (version 1 or 2) of the process or above it, or the limit of its address space. Callers ask before they reserve, so a shortage
// is an error and the system kills no process.
//   root: the folder that holds /proc and /sys, "" for this machine's own
// Files that cannot be read set no limit.
#pragma once

#include <cstdint>
#include <string>

namespace datapipes::shm {

struct MemoryLeft {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::string limit = "nothing";  // what sets `bytes`
};

MemoryLeft memory_left(const std::string& root = "");

}  // namespace datapipes::shm
