// queue_guard.h: the lock of a Queue, and words of its errors. Internal to queue.cpp and queue_messages.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "shm/queue.h"
#include "shm/step.h"

namespace datapipes::shm {

inline constexpr Clock::duration kBrief = std::chrono::seconds(10);  // for the mutex, in calls without a timeout

[[noreturn]] inline void throw_damaged_before() {
  throw Damaged(
      "ShmChannel: an earlier call found the shared memory damaged; only datapipes may write there. Find the process that "
      "wrote there, and make a new channel.");
}

inline std::string count(std::uint64_t number, const std::string& of) { return std::to_string(number) + ' ' + of; }

// Holds the mutex. If its last owner died, rebuilds the slots first. Throws Damaged if anybody has found garbage.
class Queue::Guard {
 public:
  Guard(Queue& queue, const Patience& patience) : mutex_(queue.header_->mutex) {
    Header& header = *queue.header_;
    for (;;) {
      const auto locked = mutex_.lock(std::max(patience.slice(), Clock::duration(std::chrono::milliseconds(10))));
      if (locked == RobustMutex::Locked::kOwnerDied) {
        try {
          queue.slots_.rebuild();
        } catch (...) {
          header.damaged.store(1);  // what is derived is half written
          mutex_.repaired();
          mutex_.unlock();
          throw;
        }
        DATAPIPES_SHM_STEP("rebuilt");
        mutex_.repaired();
        queue.suspicious_.store(true);
      }
      if (locked == RobustMutex::Locked::kYes || locked == RobustMutex::Locked::kOwnerDied) {
        if (header.damaged.load() == 0) return;
        mutex_.unlock();
        throw_damaged_before();
      }
      if (locked == RobustMutex::Locked::kLost) damaged(header, "the lock");
      if (header.damaged.load() != 0) throw_damaged_before();
      if (Clock::now() - patience.began() >= kLook && queue.lock_is_lost()) damaged(header, "the lock");
      patience.tick();
      if (patience.ended()) {
        throw TimedOut(
            "ShmChannel: another process holds the channel's lock and makes no progress. If it is stopped, resume it.");
      }
    }
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() { mutex_.unlock(); }

 private:
  RobustMutex& mutex_;
};

}  // namespace datapipes::shm
