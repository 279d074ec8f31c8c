// per_process.h: one object for each process, made when first asked for and never destroyed, since threads and tensors may
// outlive everything else. A forked child starts with a new one: in the old one a lock may be held for good, and its threads do
// not exist.
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
