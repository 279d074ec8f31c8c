// per_process.h: one object per process, made at its first use. It is never destroyed, since threads and tensors may
// outlive everything else. A forked child makes a new one: a lock in the inherited object may stay held for ever, and
// the threads of that object do not exist in the child.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace datapipes {

template <class T>
T& per_process() {
  static std::atomic<T*> current{nullptr};
  T* found = current.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<T>();
  if (!current.compare_exchange_strong(found, made.get())) return *found;
#if !defined(_WIN32)
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); }); });
#endif
  return *made.release();
}

}  // namespace datapipes
