#include "shm/memory_left.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

namespace datapipes::shm {

namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;  // "max" is no number and no limit
  return std::nullopt;
}

// The number after `key` at the beginning of a line.
std::optional<std::uint64_t> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t number = 0;
    if (words >> first && first == key && words >> number) return number;
  }
  return std::nullopt;
}

// The files of one version of cgroups.
struct Version {
  const char* mounts[2];
  const char *limit, *used;
  const char* cached[2];  // the keys in memory.stat for pages of files, which the system can drop
};
constexpr Version kFirst = {{"/sys/fs/cgroup/memory", ""},
                            "memory.limit_in_bytes",
                            "memory.usage_in_bytes",
                            {"total_inactive_file", "total_active_file"}};
constexpr Version kSecond = {
    {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, "memory.max", "memory.current", {"inactive_file", "active_file"}};

void look_upwards(const std::string& root, const Version& version, std::string group, MemoryLeft& left) {
  for (;;) {
    for (const std::string mount : version.mounts) {
      if (mount.empty()) continue;
      const std::string folder = root + mount + (group == "/" ? "" : group) + "/";
      const auto limit = number_in(folder + version.limit), used = number_in(folder + version.used);
      if (!limit || !used) continue;
      auto taken = *used;
      for (const auto* key : version.cached) taken -= std::min(taken, number_after(folder + "memory.stat", key).value_or(0));
      const auto bytes = *limit - std::min(*limit, taken);
      if (bytes < left.bytes) left = {.bytes = bytes, .limit = "the memory limit of cgroup " + group};
    }
    if (group == "/" || group.empty()) return;
    group.resize(group.rfind('/'));
    if (group.empty()) group = "/";
  }
}

}  // namespace

MemoryLeft memory_left(const std::string& root) {
  MemoryLeft left;
  if (const auto kib = number_after(root + "/proc/meminfo", "MemAvailable:")) {
    left = {.bytes = *kib * 1024, .limit = "the memory of this machine"};
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',', group = line.substr(second + 1);
    if (group.empty() || group[0] != '/') continue;
    if (controllers == ",,") look_upwards(root, kSecond, group, left);
    if (controllers.find(",memory,") != std::string::npos) look_upwards(root, kFirst, group, left);
  }
  rlimit space{};
  if (const auto pages = number_in(root + "/proc/self/statm"); pages && getrlimit(RLIMIT_AS, &space) == 0) {
    const auto used = *pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const auto bytes = space.rlim_cur - std::min<std::uint64_t>(space.rlim_cur, used);
    if (space.rlim_cur != RLIM_INFINITY && bytes < left.bytes)
      left = {.bytes = bytes, .limit = "the limit of the address space (ulimit -v)"};
  }
  return left;
}

}  // namespace datapipes::shm
