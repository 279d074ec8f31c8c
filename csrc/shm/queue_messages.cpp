// queue_messages.cpp: the messages of a Queue: sending, receiving, waiting, releasing. queue.cpp has the rest.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/buffer.h"
#include "common/stream.h"
#include "shm/queue.h"
#include "shm/queue_guard.h"
#include "shm/step.h"

namespace datapipes::shm {

namespace {

constexpr Clock::duration kSpare = std::chrono::milliseconds(30);  // for work left after a timeout

constexpr std::uint64_t kSmall = 1 << 14;  // bytes; copying this few takes less time than waking a process

// Messages of at least this many bytes are copied with stores that bypass the caches. The caches could not hold the message
// until it is received, and a line that is written whole need not be read first.
constexpr std::uint64_t kStreamed = std::uint64_t{1} << 23;

void copy_in(std::byte* to, std::span<const std::byte> from, bool streamed) {
  const std::size_t lines = streamed ? from.size() / kLineBytes * kLineBytes : 0;
  if (lines > 0) {
    stream_bytes(to, from.data(), lines);
    stream_fence();
  }
  if (from.size() > lines) std::memcpy(to + lines, from.data() + lines, from.size() - lines);
}

std::uint32_t word_of(Dropped dropped) { return static_cast<std::uint32_t>(dropped); }

std::string seconds(Clock::duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return std::to_string(ms / 1000) + (ms % 1000 == 0 ? "" : '.' + std::to_string(1000 + ms % 1000).substr(1)) + " s";
}

}  // namespace

// The right to reserve next. The destructor gives it back, even when the call throws.
class Queue::Turn {
 public:
  Turn(Header& header, std::uint32_t call) : header_(header), call_(call) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { give_up(); }

  bool free_for(std::uint32_t peer, std::uint64_t has) const { return has == 0 || has == number(peer); }
  void take(std::uint32_t peer) {
    mine_ = number(peer);
    header_.turn.store(mine_);
  }
  void give_up() {
    auto expected = std::exchange(mine_, 0);
    if (expected != 0 && header_.turn.compare_exchange_strong(expected, 0)) header_.writable.notify();
  }

 private:
  std::uint64_t number(std::uint32_t peer) const { return static_cast<std::uint64_t>(peer + 1) << 32 | call_; }
  Header& header_;
  std::uint32_t call_;
  std::uint64_t mine_ = 0;
};

// A message that this process has received in place.
class Queue::Lease {
 public:
  Lease(std::shared_ptr<Queue> queue, Slot& slot) : queue_(std::move(queue)), slot_(slot), pid_(getpid()) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (getpid() != pid_) return;  // a forked child has inherited the object, not the message
    const bool later = queue_->two_steps_.load();
    // SYNC slot-dropped: whoever frees the slot sees this mark after all reads of this process
    slot_.dropped.store(word_of(later ? Dropped::kWaiting : Dropped::kYes), std::memory_order_seq_cst);
    DATAPIPES_SHM_STEP("a message is dropped");
    if (!later) queue_->header_->writable.notify();
  }

 private:
  std::shared_ptr<Queue> queue_;
  Slot& slot_;
  pid_t pid_;
};

// Calls `done(last, waited)` until it returns true. `last` is true in the last call before a wait: `done` then throws
// if waiting would be in vain. `waited` is true after a wait. Calls `late`, which throws, after the timeout. The timeout and
// the tick come whatever others write to the segment.
template <class Done, class Late>
void Queue::wait_until(Event& event, const Patience& patience, const Done& done, const Late& late) {
  bool looked = false;
  auto ticked = patience.began();
  for (bool waited = false; !done(false, waited);) {
    const auto seen = event.prepare();
    if (done(true, waited)) return;
    looked = !looked && look_is_due();
    if (looked) {
      look_at_peers(patience);
      continue;
    }
    if (patience.ended()) late();
    waited = true;
    const bool changed = event.changes_soon(seen) || futex_wait(event.word, seen, patience.slice());
    if (changed && Clock::now() - ticked < kLook) continue;
    patience.tick();
    ticked = Clock::now();
  }
}

void Queue::announce() {
  if (small_.load(std::memory_order_relaxed)) header_->readable.notify();
}

bool Queue::send(Kind kind, std::uint64_t epoch, std::span<const std::span<const std::byte>> pieces, Timeout timeout,
                 const Tick& tick) {
  check_open("ShmChannel.send");
  if (epoch > kMostEpoch) {
    throw std::invalid_argument("ShmChannel.send: an epoch must be below 2^63, got " + std::to_string(epoch) +
                                ". Count the epochs from 0.");
  }
  const auto most = data_bytes();
  std::uint64_t bytes = 0;
  for (const auto& piece : pieces) {
    if (piece.size() > most) bytes = most + 1;
    bytes += aligned(std::min<std::uint64_t>(piece.size(), most));
    if (bytes > most) break;
  }
  if (bytes > most) {
    std::uint64_t all = 0;
    for (const auto& piece : pieces) all += aligned(piece.size());
    throw std::length_error("ShmChannel.send: the message takes " + count(all, "bytes in shared memory, the channel has ") +
                            std::to_string(most) + ". Give a larger shm_size, or send it in parts.");
  }
  bytes = std::max(bytes, kAlignment);
  small_.store(bytes <= kSmall, std::memory_order_relaxed);

  const Patience patience(timeout, tick);
  Turn turn(*header_, calls_.fetch_add(1));
  std::optional<Slots::Reserved> mine;
  std::uint32_t peer = kNone;
  bool stale = false;
  const auto reserved = [&](bool last, bool waited) {
    const Guard guard(*this, patience);
    check_open("ShmChannel.send");
    if (header_->closed.load() != 0) throw Closed("ShmChannel.send: the channel was closed by its maker. Make a new one.");
    peer = me();
    peers_.mark(peer, registered_pid(), kHasSent);
    stale = epoch < slots_.fence();
    header_->counters.dropped += stale;
    if (stale) return true;
    const auto has = header_->turn.load();
    if (turn.free_for(peer, has)) {
      mine = slots_.reserve(peer, bytes, kind, epoch);
      if (!mine) turn.take(peer);
    } else {
      check_turn(has);
    }
    if (!mine && last) check_receivers();
    if (mine && waited) {
      ++header_->counters.send_waits;
      header_->counters.send_wait_ns += static_cast<std::uint64_t>((Clock::now() - patience.began()).count());
    }
    return mine.has_value();
  };
  wait_until(header_->writable, patience, reserved, [&] { timed_out_sending(bytes, patience); });
  if (stale) return false;
  turn.give_up();

  try {
    DATAPIPES_SHM_STEP("send copies");
    std::byte* to = data_ + mine->extent.offset;
    for (const auto& piece : pieces) {
      copy_in(to, piece, bytes >= kStreamed);
      to += aligned(piece.size());
    }
    DATAPIPES_SHM_STEP("send has copied");
    bool sent = false;
    {
      // Wait for the mutex at least kSpare, even past the timeout. If a stopped process holds it, give the message up.
      const auto left = timeout ? Timeout(std::max(patience.left(), kSpare)) : std::nullopt;
      const Guard guard(*this, Patience(left, tick));
      sent = slots_.publish(peer, *mine);
      if (sent) {
        ++header_->counters.messages;
        header_->counters.bytes += bytes;
      } else {
        ++header_->counters.dropped;
      }
    }
    DATAPIPES_SHM_STEP("send comes to the wake");
    (sent ? header_->readable : header_->writable).notify();
    return sent;
  } catch (...) {
    slots_[mine->slot].dropped.store(word_of(Dropped::kYes));
    header_->writable.notify();
    throw;
  }
}

void Queue::timed_out_sending(std::uint64_t bytes, const Patience& patience) {
  Stats now;
  try {
    const Guard guard(*this, Patience(kSpare));
    now = stats_now();
  } catch (const TimedOut&) {
    throw TimedOut(
        "ShmChannel.send: another process holds the channel's lock and makes no progress. If it is stopped, resume it.");
  }
  throw TimedOut("ShmChannel.send: no room for a message of " + count(bytes, "bytes within ") +
                 seconds(patience.timeout().value_or(kLook)) + ": the channel holds " +
                 count(now.unread, "unread messages of at most ") + count(capacity(), "(capacity), and ") +
                 count(now.room.used_bytes, "of its ") + count(data_bytes(), "bytes are used, ") +
                 count(now.room.held_bytes, "of them by messages that receivers still hold") +
                 ". Receive, let go of received tensors, or give a longer timeout, a larger capacity or shm_size.");
}

Received Queue::recv(Timeout timeout, const Tick& tick) {
  check_open("ShmChannel.recv");
  const Patience patience(timeout, tick);
  Received received;
  Slots::Taken taken{};
  const auto took = [&](bool last, bool waited) {
    const Guard guard(*this, patience);
    check_open("ShmChannel.recv");
    const auto peer = me();
    peers_.mark(peer, registered_pid(), kHasReceived);
    const auto found = slots_.take(peer);
    if (!found) {
      if (header_->closed.load() != 0) throw Closed("ShmChannel.recv: the channel was closed by its maker. Make a new one.");
      if (last) check_senders();
      return false;
    }
    taken = *found;
    received.kind = taken.kind;
    received.epoch = taken.epoch;
    received.bytes = {data_ + taken.extent.offset, taken.extent.bytes};
    header_->counters.copied_out += !taken.keep;
    if (waited) {
      ++header_->counters.receive_waits;
      header_->counters.receive_wait_ns += static_cast<std::uint64_t>((Clock::now() - patience.began()).count());
    }
    nobody_since_.store(0);
    return true;
  };
  wait_until(header_->readable, patience, took, [&] {
    throw TimedOut("ShmChannel.recv: no message within " + seconds(patience.timeout().value_or(kLook)) +
                   ". Check that the senders make progress, or give a longer timeout.");
  });
  DATAPIPES_SHM_STEP("recv has taken");
  header_->writable.notify();  // one message less is unread
  Slot& slot = slots_[taken.slot];
  try {
    if (taken.keep) {
      received.keeper = std::make_shared<Lease>(shared_from_this(), slot);
      return received;
    }
    auto copy = std::make_shared<Buffer<std::byte>>(static_cast<std::int64_t>(received.bytes.size()));
    std::memcpy(copy->data(), received.bytes.data(), received.bytes.size());
    received.bytes = {copy->data(), received.bytes.size()};
    received.keeper = std::move(copy);
  } catch (...) {
    slot.dropped.store(word_of(Dropped::kYes));
    header_->writable.notify();
    throw;
  }
  DATAPIPES_SHM_STEP("recv has copied");
  slot.dropped.store(word_of(Dropped::kYes));
  header_->writable.notify();
  return received;
}

// --- messages released in two steps

bool Queue::holds_here(const Slot& slot) const {
  const auto registered = registration_.load();
  const auto tag = Tag::from(slot.tag.load(std::memory_order_acquire));
  return tag.state == SlotState::kHeld && static_cast<pid_t>(registered >> 32) == getpid() &&
         tag.owner == static_cast<std::uint32_t>(registered);
}

std::vector<std::uint32_t> Queue::dropped_slots() {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    auto expected = word_of(Dropped::kWaiting);
    if (holds_here(slots_[i]) && slots_[i].dropped.compare_exchange_strong(expected, word_of(Dropped::kBeingSeen))) {
      found.push_back(i);
    }
  }
  return found;
}

void Queue::let_go(std::span<const std::uint32_t> slots) {
  for (const auto i : slots) {
    auto expected = word_of(Dropped::kBeingSeen);
    if (holds_here(slots_[i])) slots_[i].dropped.compare_exchange_strong(expected, word_of(Dropped::kYes));
  }
  if (!slots.empty()) header_->writable.notify();
}

}  // namespace datapipes::shm
