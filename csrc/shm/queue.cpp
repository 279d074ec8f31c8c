// queue.cpp: the beginning and the end of a Queue, its peers, and its statistics. queue_messages.cpp has its messages.
#include "shm/queue.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "shm/queue_guard.h"
#include "shm/step.h"

namespace datapipes::shm {

namespace {

constexpr Clock::duration kGrace = std::chrono::milliseconds(500);  // time for a peer that is just starting to appear

std::int64_t now_ticks() { return Clock::now().time_since_epoch().count(); }

// Wakes all waiters, even when the call throws.
class WakeAll {
 public:
  explicit WakeAll(Header& header) : header_(header) {}
  WakeAll(const WakeAll&) = delete;
  WakeAll& operator=(const WakeAll&) = delete;
  ~WakeAll() {
    header_.readable.notify();
    header_.writable.notify();
  }

 private:
  Header& header_;
};

}  // namespace

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
    slots_.reap(peer);  // no lease or call is left, since each keeps the queue alive; slots may still wait for a device
    peers_.remove(peer);
  } catch (...) {
    // The entry stays. A survivor reaps it once this process has ended; until then this peer counts as waiting.
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
  const WakeAll at_the_end(*header_);
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
      // There is nothing left to keep in order; other users of the channel get the error in their own calls.
    }
  }
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
  // Unsigned, so that a time in the future, which only garbage can be, counts as long ago.
  return suspicious_.load() || static_cast<std::uint64_t>(now_ticks()) - last >= static_cast<std::uint64_t>(kLook.count());
}

// An unregistered process may hold the lock too, so any existing thread counts as a possible owner.
bool Queue::lock_is_lost() const {
  const auto owner = header_->mutex.owner();
  if (!owner || is_another_thread(*owner)) return false;
  const auto here = this_process().pid_namespace;
  const auto peers = peers_.others(kNone);
  // Threads of another pid namespace have other numbers here. If the owner has died, the kernel has marked the lock.
  return here != 0 && std::ranges::all_of(peers, [&](const auto& peer) { return peer.second.pid_namespace == here; }) &&
         header_->mutex.owner() == owner;
}

void Queue::check_turn(std::uint64_t turn) const {
  // The turn is given up, by the peer or by its reaper, before the peer's entry is freed.
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

}  // namespace datapipes::shm
