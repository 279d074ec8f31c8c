// robust_mutex.h: a mutex in shared memory whose owner may die. The kernel marks it then, and the next one to lock it is told, so
// that it can repair what the mutex guards.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "shm/futex.h"

namespace datapipes::shm {

class RobustMutex {
 public:
  enum class Locked { kYes, kOwnerDied, kTimedOut };

  // Called once, by the creator of the segment.
  void make() {
    pthread_mutexattr_t attributes;
    check(pthread_mutexattr_init(&attributes));
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int error = pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
    check(error);
  }

  // Waits at most `at_most`: the owner may be stopped, by a debugger for one. After kOwnerDied the mutex is held; call repaired()
  // when what it guards is in order again.
  Locked lock(Clock::duration at_most) {
    int error = pthread_mutex_trylock(&mutex_);
    if (error == EBUSY) {
      timespec until{};
      clock_gettime(kClock, &until);
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(at_most).count() + until.tv_nsec;
      until.tv_sec += static_cast<time_t>(ns / 1'000'000'000);
      until.tv_nsec = static_cast<long>(ns % 1'000'000'000);
      error = lock_until(until);
    }
    if (error == ETIMEDOUT) return Locked::kTimedOut;
    if (error == EOWNERDEAD) return Locked::kOwnerDied;
    check(error);
    return Locked::kYes;
  }
  void repaired() { check(pthread_mutex_consistent(&mutex_)); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30) && !defined(__SANITIZE_THREAD__)  // which does not see that call
  static constexpr clockid_t kClock = CLOCK_MONOTONIC;
  int lock_until(const timespec& until) { return pthread_mutex_clocklock(&mutex_, kClock, &until); }
#else
  static constexpr clockid_t kClock = CLOCK_REALTIME;  // which somebody may set back, but this call knows no other
  int lock_until(const timespec& until) { return pthread_mutex_timedlock(&mutex_, &until); }
#endif
  static void check(int error) {
    if (error != 0) throw std::system_error(error, std::generic_category(), "ShmChannel: the mutex of the segment");
  }
  pthread_mutex_t mutex_;
};

}  // namespace datapipes::shm
