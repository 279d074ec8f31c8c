#include "shm/queue.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "common/buffer.h"
#include "common/stream.h"
#include "shm/step.h"

namespace datapipes::shm {

namespace {

constexpr Clock::duration kGrace = std::chrono::milliseconds(500);  // time for a peer that is just starting to appear
constexpr Clock::duration kSpare = std::chrono::milliseconds(30);   // for work left after a timeout
constexpr Clock::duration kBrief = std::chrono::seconds(10);        // for the mutex, in calls without a timeout

constexpr std::uint64_t kSmall = 1 << 14;  // bytes; copying so few takes less time than waking a process

// Messages of at least this many bytes are copied with stores that bypass the caches. The caches cannot hold such a
// message until it is received, and a line written whole need not be read first.
constexpr std::uint64_t kStreamed = std::uint64_t{1} << 23;

void copy_in(std::byte* to, std::span<const std::byte> from, bool streamed) {
  const std::size_t lines = streamed ? from.size() / kLineBytes * kLineBytes : 0;
  if (lines > 0) {
    stream_bytes(to, from.data(), lines);
    stream_fence();
  }
  if (from.size() > lines) std::memcpy(to + lines, from.data() + lines, from.size() - lines);
}

std::int64_t now_ticks() { return Clock::now().time_since_epoch().count(); }

std::uint32_t word_of(Dropped dropped) { return static_cast<std::uint32_t>(dropped); }

std::string count(std::uint64_t number, const std::string& of) { return std::to_string(number) + ' ' + of; }

std::string seconds(Clock::duration time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return std::to_string(ms / 1000) + (ms % 1000 == 0 ? "" : '.' + std::to_string(1000 + ms % 1000).substr(1)) + " s";
}

}  // namespace

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
          header.damaged.store(1);  // also if memory ran out: what is derived is half written
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
        throw Damaged(
            "ShmChannel: an earlier call found the shared memory damaged; only datapipes may write there. Find the process that "
            "wrote there, and make a new channel.");
      }
      if (locked == RobustMutex::Locked::kLost) damaged(header, "the lock");
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

// The right to reserve next. The destructor gives it back, also when the call throws.
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

// --- beginning and end

namespace {

constexpr std::uint64_t paged(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

// The only layout of a channel with these two values.
Layout layout_of(std::uint32_t capacity, std::uint64_t data_bytes) {
  const auto num_slots = capacity + std::max(capacity, kFewestHeld);
  const auto peers_offset = aligned(sizeof(Header));
  const auto slots_offset = aligned(peers_offset + kNumPeers * sizeof(Peer));
  return {.magic = kMagic,
          .version = kVersion,
          .capacity = capacity,
          .num_slots = num_slots,
          .num_peers = kNumPeers,
          .peers_offset = peers_offset,
          .slots_offset = slots_offset,
          .data_offset = paged(slots_offset + std::uint64_t{num_slots} * sizeof(Slot)),
          .data_bytes = aligned(data_bytes)};
}

}  // namespace

Queue::Queue(Segment segment, const Layout& layout, const ProcessId& creator)
    : segment_(std::move(segment)),
      layout_(layout),
      creator_(creator),
      header_(reinterpret_cast<Header*>(segment_.data())),
      peers_(*header_, reinterpret_cast<Peer*>(segment_.data() + layout_.peers_offset)),
      slots_(*header_, reinterpret_cast<Slot*>(segment_.data() + layout_.slots_offset), layout_),
      data_(segment_.data() + layout_.data_offset) {}

std::shared_ptr<Queue> Queue::create(std::uint32_t capacity, std::uint64_t data_bytes) {
  if (capacity < 1 || capacity > kMostCapacity) {
    throw std::invalid_argument("ShmChannel: capacity must be in [1, " + std::to_string(kMostCapacity) + "], got " +
                                std::to_string(capacity) + ". Choose an allowed value.");
  }
  if (data_bytes < kAlignment || data_bytes > std::numeric_limits<std::int64_t>::max() / 2) {
    throw std::invalid_argument("ShmChannel: shm_size must be in [" + std::to_string(kAlignment) + ", 2^62) bytes, got " +
                                std::to_string(data_bytes) + ". Choose an allowed value.");
  }
  const auto layout = layout_of(capacity, data_bytes);
  const auto creator = this_process();
  Segment segment = Segment::create(layout.data_offset + paged(layout.data_bytes));
  auto* const header = new (segment.data()) Header{};  // fresh pages are zero: free slots, free peers
  header->layout.set(layout);
  header->creator.set(creator);
  header->mutex.make();
  std::shared_ptr<Queue> queue(new Queue(std::move(segment), layout, creator));
  queue->made_by_ = getpid();
  queue->slots_.rebuild();
  queue->join(false);
  return queue;
}

std::shared_ptr<Queue> Queue::attach(int fd) {
  Segment segment = Segment::attach(fd);
  const auto* const header = reinterpret_cast<const Header*>(segment.data());
  const auto layout = segment.size() < sizeof(Header) ? Layout{} : header->layout.get();
  if (layout.magic != kMagic) {
    throw std::invalid_argument("ShmChannel: the shared memory is not that of a channel. Pass the ShmChannel itself.");
  }
  if (layout.version != kVersion) {
    throw std::invalid_argument("ShmChannel: the channel has layout " + std::to_string(layout.version) +
                                ", this datapipes reads " + std::to_string(kVersion) +
                                ". Use the same version of datapipes in all processes.");
  }
  if (layout.capacity < 1 || layout.capacity > kMostCapacity || layout.data_bytes < kAlignment ||
      layout.data_bytes > segment.size() || layout != layout_of(layout.capacity, layout.data_bytes) ||
      layout.data_offset > segment.size() - layout.data_bytes) {
    throw std::invalid_argument("ShmChannel: the header of the shared memory is not that of a channel of " +
                                std::to_string(segment.size()) + " bytes; it is damaged. Make a new channel.");
  }
  std::shared_ptr<Queue> queue(new Queue(std::move(segment), layout, header->creator.get()));
  queue->join(false);
  return queue;
}

Queue::~Queue() {
  try {
    leave(false);
    const auto registered = registration_.load();
    if (static_cast<pid_t>(registered >> 32) != getpid()) return;
    const Guard guard(*this, Patience(kBrief));
    const auto peer = static_cast<std::uint32_t>(registered);
    slots_.reap(peer);  // no lease and no call is left, since each keeps the queue; slots may still wait for a device
    peers_.remove(peer);
  } catch (...) {
    // The entry stays. A survivor reaps it once this process has ended; until then this peer counts as one that waits.
  }
}

std::uint32_t Queue::me(std::uint32_t roles) {
  const auto registered = registration_.load();
  if (static_cast<pid_t>(registered >> 32) == getpid()) return static_cast<std::uint32_t>(registered);
  const auto id = this_process();
  if (peers_.full()) {
    for (const auto& [other, was] : peers_.others(kNone)) {
      if (has_ended(was)) reap(other);
    }
  }
  const auto peer = peers_.add(id, roles);
  deaths_told_.store(header_->deaths.get());
  registration_.store(static_cast<std::uint64_t>(id.pid) << 32 | peer);
  return peer;
}

void Queue::join(bool inherited) {
  const Guard guard(*this, Patience(kBrief));
  (void)me(inherited ? kInherited : 0);
}

void Queue::leave(bool by_exit) {
  if (left_.exchange(true)) return;
  const auto registered = registration_.load();
  if (static_cast<pid_t>(registered >> 32) == getpid()) {
    try {
      const Guard guard(*this, Patience(kBrief));
      const auto peer = static_cast<std::uint32_t>(registered);
      // Other threads of this process may be inside send, and never return if the process is ending. The entry stays
      // while it owns a slot or the turn, so that a survivor can free them.
      const bool owns = slots_.owns(peer) || header_->turn.load() >> 32 == peer + 1;
      peers_.leave(peer, owns, by_exit);
      if (!owns) registration_.store(0);
    } catch (const Damaged&) {
      // There is nothing to keep in order, and whoever still uses the channel is told by its own calls.
    }
  }
  header_->readable.notify();
  header_->writable.notify();
}

void Queue::close() {
  // this_process() cannot read /proc without a free descriptor, so the creator's object also remembers its pid.
  const bool made_it = made_by_ == getpid() || creator_ == this_process();
  if (!left_.load() && made_it) header_->closed.store(1);
  leave(false);
}

// --- errors about the state

void Queue::check_open(const char* call) const {
  if (left_.load()) throw Closed(std::string(call) + ": the channel was closed in this process. Make a new one.");
}

bool Queue::anybody_else(std::uint32_t role) {
  const auto peer = me();
  if (header_->attached.get() < 2 || peers_.has(peer, role) || peers_.others_may(peer, role)) {
    nobody_since_.store(0);
    return true;
  }
  if (nobody_since_.load() == 0) nobody_since_.store(now_ticks());
  return now_ticks() - nobody_since_.load() < kGrace.count();
}

void Queue::nobody_left(const char* call, const char* could) {
  nobody_since_.store(0);
  const std::string what = std::string(call) + ": no process is left that could " + could;
  const auto deaths = header_->deaths.get(), exits = header_->exits.get();
  if (deaths == 0 && exits == 0) throw Closed(what + "; all have closed the channel. Close it here too.");
  throw PeersDied(what + "; " + count(deaths, "died, ") + count(exits, "ended") + ". Start them again, or close it.", {});
}

void Queue::check_senders() {
  const auto deaths = header_->deaths.get();
  const auto [who, pids] = peers_.deaths_of_senders(deaths_told_.exchange(deaths), deaths);
  if (!pids.empty()) {
    throw PeersDied("ShmChannel.recv: " + who + " died. What it had sent was received; find out why it died, or start it again.",
                    pids);
  }
  if (!anybody_else(kHasSent)) nobody_left("ShmChannel.recv", "send");
}

void Queue::check_receivers() {
  if (!anybody_else(kHasReceived)) nobody_left("ShmChannel.send", "receive");
}

// --- the peers

bool Queue::look_is_due() const {
  const auto last = static_cast<std::uint64_t>(header_->last_look.load());
  // Without a sign, so that a time in the future, which nobody wrote who looked, is long ago too.
  return suspicious_.load() || static_cast<std::uint64_t>(now_ticks()) - last >= static_cast<std::uint64_t>(kLook.count());
}

void Queue::check_turn(std::uint64_t turn) const {
  // A peer gives its turn up, or whoever reaps it does, before its entry is freed.
  if (turn != 0 && peers_.is_free(static_cast<std::uint32_t>(turn >> 32) - 1)) damaged(*header_, "the turn of the senders");
}

void Queue::look_at_peers(const Patience& patience) {
  suspicious_.store(false);
  header_->last_look.store(now_ticks());
  std::vector<std::pair<std::uint32_t, ProcessId>> others;
  {
    const Guard guard(*this, patience);
    if (left_.load()) return;  // another thread left meanwhile; me() must not register this process again
    others = peers_.others(me());
  }
  // Outside the mutex, since has_ended makes system calls.
  std::erase_if(others, [](const auto& other) { return !has_ended(other.second); });
  if (others.empty()) return;
  {
    const Guard guard(*this, patience);
    for (const auto& [peer, id] : others) {
      if (peers_.is_still(peer, id)) reap(peer);  // otherwise another survivor reaped it already
    }
  }
  header_->readable.notify();
  header_->writable.notify();
}

void Queue::reap(std::uint32_t peer) {
  const auto lost = slots_.reap(peer);
  if (header_->turn.load() >> 32 == peer + 1) header_->turn.store(0);
  DATAPIPES_SHM_STEP("reap comes to the peer");
  peers_.bury(peer, lost);
}

// --- messages

// Calls `done(last, waited)` until it returns true. `last` is true in the last call before a wait: `done` then throws
// if waiting would be in vain. `waited` is true after a wait. Calls `late`, which throws, after the timeout. Whatever others
// write to the segment meanwhile, the timeout and the tick come.
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
  throw TimedOut("ShmChannel.send: no room for " + count(bytes, "bytes within ") + seconds(patience.timeout().value_or(kLook)) +
                 ": " + count(now.unread, "of ") + count(capacity(), "messages wait, ") + count(now.room.used_bytes, "of ") +
                 count(data_bytes(), "bytes are used, ") +
                 count(now.room.held_bytes, "of them by messages that receivers still hold") +
                 ". Receive, let go of received tensors, or give a longer timeout.");
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

// --- the rest

std::uint64_t Queue::reset(std::optional<std::uint64_t> epoch) {
  check_open("ShmChannel.reset");
  std::uint64_t fence = 0;
  {
    const Guard guard(*this, Patience(kBrief));
    if (header_->closed.load() != 0) throw Closed("ShmChannel.reset: the channel was closed by its maker. Make a new one.");
    fence = slots_.fence();
    if (epoch && *epoch < fence) {
      throw std::invalid_argument("ShmChannel.reset: epochs before " + std::to_string(fence) + " are dropped already, got " +
                                  std::to_string(*epoch) + ". Pass a later epoch.");
    }
    fence = std::max(fence, epoch ? *epoch : slots_.delivered());
    header_->epoch.raise_to(fence);
    header_->fence.set(fence);  // after `epoch`: a death in between leaves it no higher
    DATAPIPES_SHM_STEP("reset has moved the fence");
    header_->counters.dropped += slots_.drop_stale();
  }
  header_->writable.notify();
  return fence;
}

std::uint64_t Queue::epoch() {
  const Guard guard(*this, Patience(kBrief));
  return slots_.epoch();
}

std::uint64_t Queue::size() {
  const Guard guard(*this, Patience(kBrief));
  return slots_.num_ready();
}

Stats Queue::stats() {
  const Guard guard(*this, Patience(kBrief));
  return stats_now();
}

Stats Queue::stats_now() {
  return {.counters = header_->counters,
          .room = slots_.room(),
          .unread = slots_.num_ready(),
          .deaths = header_->deaths.get(),
          .fence = slots_.fence()};
}

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
