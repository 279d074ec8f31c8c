// queue.h: the message queue of ShmChannel: many senders and receivers in many processes, around one shared segment.
// PROTOCOL.md describes the protocol. This file waits, watches the peers and reports errors.
//   send: copies the pieces of one message into the segment. Blocks while `capacity` messages are unread or there is no room.
//   recv: returns the oldest message in place; its bytes stay until `keeper` is gone. If the messages held by receivers
//   would then leave no gap of half the data bytes, recv returns a copy instead.
//   Both take a timeout (none: wait as long as a peer lives) and a tick. While they wait they call the tick every 100
//   ms; it may throw to end the wait.
// Throws TimedOut, Closed, PeersDied, std::length_error (a message larger than the segment), std::invalid_argument, NoMemory,
// std::system_error (the system refuses), Damaged (the segment has a value that no peer writes). The queue stays usable after
// each error except Closed and Damaged. The queue survives a fork: the child registers as a peer of its own when it first uses
// the queue, and frees nothing of its parent's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shm/patience.h"
#include "shm/peers.h"
#include "shm/segment.h"
#include "shm/slots.h"
#include "shm/state.h"

namespace datapipes::shm {

struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct PeersDied : std::runtime_error {
  PeersDied(const std::string& what, std::vector<std::int32_t> pids) : std::runtime_error(what), pids(std::move(pids)) {}
  std::vector<std::int32_t> pids;
};

struct Received {
  Kind kind = Kind::kMessage;
  std::uint64_t epoch = 0;
  std::span<std::byte> bytes;          // the pieces in order, each at a multiple of kAlignment
  std::shared_ptr<const void> keeper;  // keeps `bytes` valid
};

struct Stats {
  Counters counters{};
  Slots::Room room{};
  std::uint64_t unread = 0, deaths = 0, fence = 0;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  using Timeout = Patience::Timeout;
  using Tick = Patience::Tick;

  static std::shared_ptr<Queue> create(std::uint32_t capacity, std::uint64_t data_bytes);
  static std::shared_ptr<Queue> attach(int fd);  // takes ownership of the descriptor
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue();

  // Returns false if the message was dropped because its epoch was reset.
  bool send(Kind kind, std::uint64_t epoch, std::span<const std::span<const std::byte>> pieces, Timeout timeout,
            const Tick& tick);
  Received recv(Timeout timeout, const Tick& tick);
  // Called before a message is put together: wakes a sleeping receiver early, so that waking up and sending overlap.
  // Does nothing if the last message was large: copying a large one takes longer than the receiver looks before it
  // sleeps again.
  void announce();

  // Moves the fence and returns it. Messages of epochs before the fence are dropped, waiting messages now and later ones
  // when they are sent. Without `epoch` the fence becomes the newest received epoch + 1.
  std::uint64_t reset(std::optional<std::uint64_t> epoch);
  void close();               // the creator closes the queue for everybody; any other process just leaves
  void leave(bool by_exit);   // ends the use of the queue in this process
  void join(bool inherited);  // registers this process now instead of at its first send or recv

  std::uint64_t size();   // READY messages
  std::uint64_t epoch();  // the newest epoch that was begun
  Stats stats();
  std::uint32_t capacity() const { return layout_.capacity; }
  std::uint64_t data_bytes() const { return layout_.data_bytes; }
  int descriptor() const { return segment_.descriptor(); }
  std::span<std::byte> memory() const { return {segment_.data(), segment_.size()}; }

  // A device may read a message after its tensors are gone. With two steps on, a slot becomes free only after
  // let_go(slot).
  void release_in_two_steps(bool on) { two_steps_.store(on); }
  std::vector<std::uint32_t> dropped_slots();  // slots whose tensors are gone; returns each slot once
  void let_go(std::span<const std::uint32_t> slots);

 private:
  class Guard;
  class Turn;
  class Lease;
  friend class Lease;
  Queue(Segment segment, const Layout& layout, const ProcessId& creator);

  std::uint32_t me(std::uint32_t roles = 0);  // under the mutex; registers this process if it is not registered yet
  bool anybody_else(std::uint32_t role);      // under the mutex; false once no peer could play `role` for kGrace
  void check_open(const char* call) const;
  void check_senders();
  void check_receivers();
  [[noreturn]] void nobody_left(const char* call, const char* could);
  void look_at_peers(const Patience& patience);
  void reap(std::uint32_t peer);  // under the mutex
  std::int32_t registered_pid() const { return static_cast<std::int32_t>(registration_.load() >> 32); }
  bool look_is_due() const;
  void check_turn(std::uint64_t turn) const;  // under the mutex
  // For a waiter on the mutex: whether the mutex was overwritten, so that it names an impossible owner.
  bool lock_is_lost() const;
  template <class Done, class Late>
  void wait_until(Event& event, const Patience& patience, const Done& done, const Late& late);
  Stats stats_now();  // under the mutex
  [[noreturn]] void timed_out_sending(std::uint64_t bytes, const Patience& patience);
  bool holds_here(const Slot& slot) const;

  Segment segment_;
  const Layout layout_;  // these two are never read from the segment again
  const ProcessId creator_;
  pid_t made_by_ = 0;  // set in the object that create() returned; 0 in an attached one
  Header* header_;
  Peers peers_;
  Slots slots_;
  std::byte* data_;
  std::atomic<std::uint64_t> registration_{0};  // pid << 32 | peer; after a fork the pid is the parent's
  std::atomic<std::uint64_t> deaths_told_{0};
  std::atomic<std::int64_t> nobody_since_{0};  // ticks of Clock; 0: never
  std::atomic<std::uint32_t> calls_{0};
  std::atomic<bool> small_{false};  // whether the last message sent was small
  std::atomic<bool> left_{false}, suspicious_{false}, two_steps_{false};
};

}  // namespace datapipes::shm
