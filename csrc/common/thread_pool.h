// thread_pool.h: lends threads to a kernel for the time of one call.
//   ThreadPool::run(helpers, help, own): calls own() on this thread and help() on up to `helpers` others. Returns when
//   all calls have returned. There may be fewer helpers, or none, if they are busy or cannot be started; own() then
//   does all the work. So calls from many threads never wait for each other. help() must not throw; an error of own()
//   is passed on.
//   parallel_for(count, threads, work): calls work(i) for each i < count, in any order. If several calls throw, it throws
//   the error of the lowest i, as a plain loop would.
//   in_turns(count, most, threads, work): calls work(begin, end) for turns of up to `most` of `count` items, as parallel_for.
//   in_order(count, threads, produce, consume): calls produce(i) on all threads, in any order. Calls consume(i) on this
//   thread in ascending order, each as soon as product i is ready. Throws what a plain loop would throw; after an error
//   no further product is begun.
// The work must not depend on which thread does it; the results are then the same for every number of threads.
// Threads start at the first use and sleep between calls. They belong to one process: a forked child starts its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

namespace datapipes {

class ThreadPool {
 public:
  static constexpr int kMostThreads = 256;

  static ThreadPool& instance();

  void run(int helpers, const std::function<void()>& help, const std::function<void()>& own);

 private:
  struct Job {
    const std::function<void()>* help;
    int wanted;  // helpers that may still enter
    int inside = 0;
  };
  void work();
  void start_threads(int wanted);

  std::mutex mutex_;
  std::condition_variable posted_, left_;
  std::vector<Job*> jobs_;
  int num_threads_ = 0;
};

template <class Work>
void parallel_for(std::int64_t count, int threads, Work&& work) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::int64_t failed_at = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error;
  const std::function<void()> loop = [&] {
    for (std::int64_t i; (i = next.fetch_add(1)) < count;) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        next.store(count);  // every lower i has been started already and still runs
        if (i < failed_at) {
          failed_at = i;
          error = std::current_exception();
        }
      }
    }
  };
  ThreadPool::instance().run(static_cast<int>(std::min<std::int64_t>(threads, count)) - 1, loop, loop);
  if (error) std::rethrow_exception(error);
}

template <class Work>
void in_turns(std::int64_t count, std::int64_t most, int threads, Work&& work) {
  parallel_for((count + most - 1) / most, threads,
               [&](std::int64_t turn) { work(turn * most, std::min((turn + 1) * most, count)); });
}

template <class Produce, class Consume>
void in_order(std::int64_t count, int threads, Produce&& produce, Consume&& consume) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      produce(i);
      consume(i);
    }
    return;
  }
  struct Product {
    std::atomic<bool> ready{false};
    std::exception_ptr error;
  };
  std::vector<Product> products(static_cast<std::size_t>(count));
  std::atomic<std::int64_t> next{0};
  const auto produce_one = [&] {
    const std::int64_t i = next.fetch_add(1);
    if (i >= count) return false;
    Product& product = products[static_cast<std::size_t>(i)];
    try {
      produce(i);
    } catch (...) {
      product.error = std::current_exception();
    }
    product.ready.store(true, std::memory_order_release);  // SYNC product-ready
    product.ready.notify_one();
    return true;
  };
  const std::function<void()> help = [&] {
    while (produce_one()) {
    }
  };
  const std::function<void()> own = [&] {
    try {
      for (std::int64_t i = 0; i < count; ++i) {
        Product& product = products[static_cast<std::size_t>(i)];
        while (!product.ready.load(std::memory_order_acquire)) {  // SYNC product-ready
          if (!produce_one()) product.ready.wait(false, std::memory_order_acquire);
        }
        if (product.error) std::rethrow_exception(product.error);
        consume(i);
      }
    } catch (...) {
      next.store(count);
      throw;
    }
  };
  ThreadPool::instance().run(static_cast<int>(std::min<std::int64_t>(threads, count)) - 1, help, own);
}

}  // namespace datapipes
