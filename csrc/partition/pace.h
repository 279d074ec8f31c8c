// pace.h: calls back to the caller during a long kernel.
//   Pulse is called every few million edges; an exception from it ends the kernel. Pace counts the edges.
#pragma once

#include <cstdint>
#include <functional>

namespace datapipes {

using Pulse = std::function<void()>;

class Pace {
 public:
  explicit Pace(const Pulse& pulse) : pulse_(pulse) {}
  void add(std::int64_t edges) {
    edges_ += edges;
    if (edges_ < kEdgesPerPulse) return;
    edges_ = 0;
    pulse_();
  }

 private:
  static constexpr std::int64_t kEdgesPerPulse = std::int64_t{1} << 22;

  const Pulse& pulse_;
  std::int64_t edges_ = 0;
};

}  // namespace datapipes
