// uring.h: reads of a file by io_uring, without liburing: two rings in memory shared with the kernel.
//   Uring(entries): may throw std::system_error, where the kernel has none or forbids it.
//   submit(read): queues one; there must be room (`in_flight() < entries()`).
//   wait(done): hands queued reads to the kernel and calls done(number, result) for each that has ended, at least one if any
//   is in flight. result: bytes, or -errno.
// Belongs to one thread. The memory of a read must live until it has ended; the destructor waits for all that are in flight.
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace datapipes {

struct UringRead {
  int descriptor;
  void* memory;
  std::uint32_t bytes;
  std::int64_t place;
  std::uint64_t number;  // the caller's
};

class Uring {
 public:
  explicit Uring(unsigned entries) {
    io_uring_params params{};
    ring_ = static_cast<int>(::syscall(__NR_io_uring_setup, entries, &params));
    if (ring_ < 0) fail("io_uring_setup");
    entries_ = params.sq_entries;
    try {
      sq_bytes_ = params.sq_off.array + params.sq_entries * sizeof(std::uint32_t);
      cq_bytes_ = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
      sqe_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
      sq_ = map(sq_bytes_, IORING_OFF_SQ_RING);
      cq_ = map(cq_bytes_, IORING_OFF_CQ_RING);
      sqes_ = static_cast<io_uring_sqe*>(map(sqe_bytes_, IORING_OFF_SQES));
    } catch (...) {
      close();
      throw;
    }
    sq_tail_ = at<std::uint32_t>(sq_, params.sq_off.tail);
    sq_mask_ = *at<std::uint32_t>(sq_, params.sq_off.ring_mask);
    sq_array_ = at<std::uint32_t>(sq_, params.sq_off.array);
    cq_head_ = at<std::uint32_t>(cq_, params.cq_off.head);
    cq_tail_ = at<std::uint32_t>(cq_, params.cq_off.tail);
    cq_mask_ = *at<std::uint32_t>(cq_, params.cq_off.ring_mask);
    cqes_ = at<io_uring_cqe>(cq_, params.cq_off.cqes);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;
  ~Uring() {
    try {
      while (in_flight_ > 0) wait([](std::uint64_t, int) {});
    } catch (...) {  // closing the ring cancels what is left, and waits for it
    }
    close();
  }

  unsigned entries() const { return entries_; }
  unsigned in_flight() const { return in_flight_; }

  void submit(const UringRead& read) {
    const std::uint32_t tail = *sq_tail_;
    io_uring_sqe& entry = sqes_[tail & sq_mask_];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = IORING_OP_READ;
    entry.fd = read.descriptor;
    entry.addr = reinterpret_cast<std::uintptr_t>(read.memory);
    entry.len = read.bytes;
    entry.off = static_cast<std::uint64_t>(read.place);
    entry.user_data = read.number;
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++queued_, ++in_flight_;
  }

  template <class Done>
  void wait(Done&& done) {
    if (in_flight_ == 0) return;
    while (true) {
      const long taken = ::syscall(__NR_io_uring_enter, ring_, queued_, 1U, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (taken >= 0) {
        queued_ -= static_cast<unsigned>(taken);
        if (queued_ == 0) break;
      } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        fail("io_uring_enter");
      } else {
        break;  // what has ended makes room
      }
    }
    std::uint32_t head = *cq_head_;
    for (; head != std::atomic_ref(*cq_tail_).load(std::memory_order_acquire); ++head) {
      const io_uring_cqe& ended = cqes_[head & cq_mask_];
      const std::uint64_t number = ended.user_data;
      const int result = ended.res;
      std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
      --in_flight_;
      done(number, result);
    }
  }

 private:
  [[noreturn]] static void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }
  void* map(std::size_t bytes, std::int64_t place) const {
    void* const found = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_, place);
    if (found == MAP_FAILED) fail("mapping the ring of io_uring");
    return found;
  }
  template <class T>
  static T* at(void* ring, std::uint32_t place) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(ring) + place);
  }
  void close() {
    if (sqes_ != nullptr) ::munmap(sqes_, sqe_bytes_);
    if (cq_ != nullptr) ::munmap(cq_, cq_bytes_);
    if (sq_ != nullptr) ::munmap(sq_, sq_bytes_);
    if (ring_ >= 0) ::close(ring_);
  }

  int ring_ = -1;
  unsigned entries_ = 0, queued_ = 0, in_flight_ = 0;
  std::size_t sq_bytes_ = 0, cq_bytes_ = 0, sqe_bytes_ = 0;
  void *sq_ = nullptr, *cq_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  std::uint32_t *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  std::uint32_t sq_mask_ = 0, cq_mask_ = 0;
};

}  // namespace datapipes
