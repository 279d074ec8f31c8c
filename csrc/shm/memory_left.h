// memory_left.h: how much memory this process may still take, and what sets the limit: the machine, or a cgroup it is in (version
// 1 or 2, its own or one above). Asking before reserving makes a shortage an error, where the system would kill a process.
//   root: where /proc and /sys stand, "" for this machine's own
// Files that cannot be read set no limit.
#pragma once

#include <cstdint>
#include <string>

namespace datapipes::shm {

struct MemoryLeft {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::string limit = "nothing";  // what sets it
};

MemoryLeft memory_left(const std::string& root = "");

}  // namespace datapipes::shm
