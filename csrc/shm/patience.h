// patience.h: the timeout of a call, and the function that it calls while it waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "shm/futex.h"

namespace datapipes::shm {

inline constexpr Clock::duration kLook = std::chrono::milliseconds(100);  // how often a waiter checks its peers

class Patience {
 public:
  using Timeout = std::optional<Clock::duration>;  // none: no limit
  using Tick = std::function<void()>;              // called at least every kLook while waiting; may throw to end the wait

  explicit Patience(Timeout timeout) : timeout_(timeout), began_(Clock::now()) {}
  Patience(Timeout timeout, const Tick& tick) : timeout_(timeout), began_(Clock::now()), tick_(&tick) {}
  Patience(Timeout, Tick&&) = delete;  // the tick must outlive this object

  bool ended() const { return timeout_ && Clock::now() - began_ >= *timeout_; }
  Clock::duration slice() const {
    return timeout_ ? std::clamp(*timeout_ - (Clock::now() - began_), Clock::duration::zero(), kLook) : kLook;
  }
  // Requires a timeout.
  Clock::duration left() const { return *timeout_ - (Clock::now() - began_); }
  void tick() const {
    if (tick_ != nullptr && *tick_) (*tick_)();
  }
  Timeout timeout() const { return timeout_; }
  Clock::time_point began() const { return began_; }

 private:
  Timeout timeout_;
  Clock::time_point began_;
  const Tick* tick_ = nullptr;
};

}  // namespace datapipes::shm
