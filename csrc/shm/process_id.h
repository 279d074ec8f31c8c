// process_id.h: which process it was, and whether it has ended. A pid alone does not tell, since it is used again.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace datapipes::shm {

struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t started = 0;        // clock ticks after boot; 0 where /proc does not tell
  std::uint64_t pid_namespace = 0;  // inode; 0 where /proc does not tell
  bool operator==(const ProcessId&) const = default;
};

ProcessId this_process();

// Whether all threads of that process have ended; a zombie has. False where it cannot be judged: in another pid namespace.
bool has_ended(const ProcessId& process);

}  // namespace datapipes::shm
