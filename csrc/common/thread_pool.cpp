#include "common/thread_pool.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "common/per_process.h"

#if !defined(_WIN32)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#endif

namespace datapipes {

namespace {

// Makes a helper preempt no thread when it wakes up; its share of the processor stays. Otherwise a kernel of a thread that
// works ahead would take the core of the program's own thread. A policy set by the user stays; if the system refuses, the
// helper is an ordinary thread.
void preempt_nobody() {
#if defined(__linux__)
  int policy = 0;
  sched_param param{};
  if (pthread_getschedparam(pthread_self(), &policy, &param) == 0 && policy == SCHED_OTHER)
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &param);
#endif
}

}  // namespace

ThreadPool& ThreadPool::instance() { return per_process<ThreadPool>(); }

void ThreadPool::start_threads(int wanted) {
#if !defined(_WIN32)
  sigset_t all, before;  // the helpers block all signals, so that the program's own threads handle them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
  try {
    for (; num_threads_ < std::min(wanted, kMostThreads); ++num_threads_) std::thread([this] { work(); }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one: go on with fewer helpers
  }
#if !defined(_WIN32)
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
}

void ThreadPool::run(int helpers, const std::function<void()>& help, const std::function<void()>& own) {
  if (helpers <= 0) return own();
  Job job{&help, helpers};
  {
    const std::lock_guard lock(mutex_);
    start_threads(helpers);
    jobs_.push_back(&job);
  }
  if (helpers == 1) {
    posted_.notify_one();
  } else {
    posted_.notify_all();
  }
  const auto leave = [&] {  // afterwards no thread refers to `job`
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    left_.wait(lock, [&job] { return job.inside == 0; });
  };
  try {
    own();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void ThreadPool::work() {
  preempt_nobody();
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return !jobs_.empty(); });
    Job* const job = jobs_.front();
    ++job->inside;
    if (--job->wanted == 0) std::erase(jobs_, job);
    lock.unlock();
    (*job->help)();
    lock.lock();
    if (--job->inside == 0) left_.notify_all();
  }
}

}  // namespace datapipes
