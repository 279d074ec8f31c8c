// per_process.h: one object per process, made at its first use. It is never destroyed, since threads and tensors may
// outlive everything else. A forked child makes a new one: a lock in the inherited object may stay held for ever, and
// the threads of that object do not exist in the child. The fork handler is registered when the library is loaded, before any
// such object exists.
#pragma once

#include <atomic>
#include <memory>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace datapipes {

template <class T>
class PerProcess {
 public:
  static T& instance() {
#if !defined(_WIN32)
    (void)&registered_;  // names the member; an unused member of a template is not instantiated
#endif
    T* found = current_.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto made = std::make_unique<T>();
    if (!current_.compare_exchange_strong(found, made.get())) return *found;
    return *made.release();
  }

 private:
  static inline std::atomic<T*> current_{nullptr};
#if !defined(_WIN32)
  static inline const int registered_ = pthread_atfork(nullptr, nullptr, [] { current_.store(nullptr); });
#endif
};

template <class T>
T& per_process() {
  return PerProcess<T>::instance();
}

}  // namespace datapipes
