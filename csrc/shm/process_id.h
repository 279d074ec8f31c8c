// process_id.h: identifies a process, and tells whether a process has ended and whether a thread exists. A pid alone is not
// enough: the system reuses pids.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace datapipes::shm {

struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t started = 0;        // clock ticks after boot; 0 if /proc cannot be read
  std::uint64_t pid_namespace = 0;  // inode; 0 if /proc cannot be read
  bool operator==(const ProcessId&) const = default;
};

ProcessId this_process();

// Whether all threads of the process have ended; a zombie has ended. False for a process of another pid namespace,
// which cannot be judged.
bool has_ended(const ProcessId& process);

// Whether another thread than the calling one has this number, in this pid namespace.
bool is_another_thread(std::int32_t tid);

}  // namespace datapipes::shm
