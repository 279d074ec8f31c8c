#include "shm/process_id.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace datapipes::shm {

namespace {

struct Stat {
  char state = 0;             // 0: no such process, or no /proc
  std::uint64_t started = 0;  // field 22
};

Stat stat_of(std::int32_t pid) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const auto length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return {};
  text[length] = '\0';
  const char* at = std::strrchr(text, ')');  // the last ')' ends the process name, which may itself hold any character
  if (at == nullptr || at[1] != ' ') return {};
  Stat found{.state = at[2]};
  at += 2;
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return {};
    ++at;
  }
  found.started = std::strtoull(at, nullptr, 10);
  return found;
}

std::uint64_t this_pid_namespace() {
  struct stat found {};
  return stat("/proc/self/ns/pid", &found) == 0 ? static_cast<std::uint64_t>(found.st_ino) : 0;
}

// Returns 1 for yes, 0 for no, -1 if the kernel cannot tell.
int pidfd_has_ended(std::int32_t pid) {
#if defined(SYS_pidfd_open)
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH ? 1 : -1;
  pollfd asked{.fd = fd, .events = POLLIN, .revents = 0};
  const int ready = poll(&asked, 1, 0);
  close(fd);
  return ready < 0 ? -1 : ready;
#else
  (void)pid;
  return -1;
#endif
}

}  // namespace

ProcessId this_process() {
  const auto pid = static_cast<std::int32_t>(getpid());
  return {.pid = pid, .started = stat_of(pid).started, .pid_namespace = this_pid_namespace()};
}

bool has_ended(const ProcessId& process) {
  if (process.pid_namespace != this_pid_namespace()) return false;
  const int told = pidfd_has_ended(process.pid);  // readable after the last thread ended, unlike the state in /proc
  if (told == 1) return true;
  const Stat now = stat_of(process.pid);
  if (process.started != 0 && now.state != 0 && now.started != process.started) return true;  // the pid was reused
  if (told == 0) return false;
  if (now.state != 0) return now.state == 'Z' || now.state == 'X';
  return kill(process.pid, 0) != 0 && errno == ESRCH;
}

bool is_another_thread(std::int32_t tid) {
  if (tid <= 0 || tid == syscall(SYS_gettid)) return false;
  return syscall(SYS_tkill, tid, 0) == 0 || errno != ESRCH;
}

}  // namespace datapipes::shm
