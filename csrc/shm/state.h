// state.h: the layout of a channel's shared segment. PROTOCOL.md says who writes each field. Plain data only: every
// process maps the segment at another address, so it holds indexes and offsets and no pointers.
//
// A peer may overwrite any byte at any moment (PROTOCOL.md, section 8). So a value is read once, by Shared::get() or an
// atomic load, and the copy is checked and used. The Layout, which the creator wrote once, is copied when the segment is
// attached. A peer that finds a value that no peer of this program writes calls damaged().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/load.h"
#include "shm/futex.h"
#include "shm/process_id.h"
#include "shm/robust_mutex.h"

namespace datapipes::shm {

inline constexpr std::uint64_t kMagic = 0x3153'4550'4950'5444;  // "DTPIPES1"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kAlignment = 64;
inline constexpr std::uint32_t kNone = 0xFFFF'FFFF;
inline constexpr std::uint32_t kNumPeers = 1024;
inline constexpr std::uint32_t kMostCapacity = 1U << 20;
inline constexpr std::uint32_t kFewestHeld = 64;  // receivers may keep this many messages at any capacity
inline constexpr std::uint64_t kMostEpoch = 0x7FFF'FFFF'FFFF'FFFF;

// The segment has a value that no peer of this program writes. The channel cannot be repaired.
struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A value in shared memory. Each get() is one read: the compiler may not repeat it after the caller's checks. Relaxed, since
// the mutex and the tags order the accesses of peers; a scalar is never torn.
template <class T>
class Shared {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  T get() const {
    if constexpr (std::is_scalar_v<T>) {
      return read_once(value_);
    } else {
      T copy;
      std::memcpy(&copy, &value_, sizeof(T));
      std::atomic_signal_fence(std::memory_order_seq_cst);
      return copy;
    }
  }
  void set(T value) {
    if constexpr (std::is_scalar_v<T>) {
      std::atomic_ref<T>(value_).store(value, std::memory_order_relaxed);
    } else {
      value_ = value;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
  void add(T more) { set(static_cast<T>(get() + more)); }
  void raise_to(T least) {
    if (get() < least) set(least);
  }

 private:
  T value_;
};

constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

enum class Kind : std::uint32_t { kMessage = 0, kEndOfEpoch = 1, kError = 2 };

enum class SlotState : std::uint32_t { kFree = 0, kWriting = 1, kReady = 2, kHeld = 3 };

// The truth about a slot. It is one word, so a transition happens in one store or not at all.
struct Tag {
  SlotState state = SlotState::kFree;
  std::uint32_t owner = kNone;  // peer

  static Tag from(std::uint64_t word) { return {static_cast<SlotState>(word & 0xFF), static_cast<std::uint32_t>(word >> 32)}; }
  std::uint64_t word() const { return static_cast<std::uint64_t>(owner) << 32 | static_cast<std::uint32_t>(state); }
};

// How far the owner has let go of a slot. The owner writes it without the mutex.
enum class Dropped : std::uint32_t {
  kNo = 0,
  kYes = 1,       // whoever holds the mutex may free the slot
  kWaiting = 2,   // the tensors are gone, but a device may still read the bytes; the owner marks it kYes later
  kBeingSeen = 3  // like kWaiting, and the owner is waiting for the device (Queue::dropped_slots returned the slot)
};

struct alignas(64) Slot {
  std::atomic<std::uint64_t> tag;
  std::atomic<std::uint32_t> dropped;
  Shared<std::uint32_t> kind;
  Shared<std::uint64_t> offset, bytes;  // the extent; offset counts from data_offset; both are multiples of kAlignment
  Shared<std::uint64_t> sequence, epoch;
  // derived
  Shared<std::uint32_t> next_by_address, previous_by_address;
  Shared<std::uint32_t> next;  // READY: the message after this one; FREE: another free slot
};

enum class PeerState : std::uint32_t { kFree = 0, kHere = 1, kLeft = 2 };

inline constexpr std::uint32_t kHasSent = 1, kHasReceived = 2;  // roles
inline constexpr std::uint32_t kInherited = 4;  // a forked child that has not used the channel yet and may never do so

struct Peer {
  std::atomic<PeerState> state;
  Shared<std::uint32_t> roles;
  Shared<std::uint64_t> number;  // 1 for the first peer that attached, 2 for the second, ...
  Shared<ProcessId> id;
};

struct Death {
  std::int32_t pid = 0;
  std::uint32_t roles = 0;
  std::uint32_t lost = 0;  // messages it was writing when it died
};

// Statistics only, no decision depends on them, so they are plain.
struct Counters {
  std::uint64_t messages, bytes;  // sent, control frames included; bytes include the padding of the alignment
  std::uint64_t send_waits, receive_waits, send_wait_ns, receive_wait_ns;
  std::uint64_t copied_out, dropped;
};

// Follows from capacity and data_bytes.
struct Layout {
  std::uint64_t magic;
  std::uint32_t version, capacity, num_slots, num_peers;
  std::uint64_t peers_offset, slots_offset, data_offset, data_bytes;
  bool operator==(const Layout&) const = default;
};

struct alignas(64) Header {
  // Written by the creator before anybody else sees the segment; read once, at attaching.
  Shared<Layout> layout;
  Shared<ProcessId> creator;

  alignas(64) Event readable;
  alignas(64) Event writable;

  alignas(64) RobustMutex mutex;
  // Under the mutex; `turn` and `closed` are also read, and `turn` given up, without it.
  std::atomic<std::uint32_t> closed;
  std::atomic<std::uint32_t> damaged;   // not 0: a peer has found garbage; every peer that locks the mutex throws Damaged
  std::atomic<std::int64_t> last_look;  // ticks of Clock: when a peer last checked whether the others live
  std::atomic<std::uint64_t> turn;      // who may reserve next: (peer + 1) << 32 | number of the call; 0: anybody
  Shared<std::uint64_t> next_sequence, fence, delivered;
  Shared<std::uint64_t> epoch;                    // the newest epoch that was begun; a sender that attaches now starts with it
  Shared<std::uint64_t> attached, exits, deaths;  // peers that ever attached; that left by exiting; that died
  Shared<std::uint64_t> receiver_lost;            // the value of `attached` when a receiver last ended or left
  std::array<Shared<Death>, 64> last_deaths;      // death number d is at d % 64
  Counters counters;

  // Derived, under the mutex.
  Shared<std::uint32_t> first_by_address, last_by_address, first_ready, last_ready, first_free;
  Shared<std::uint32_t> num_occupied, num_ready;  // slots WRITING or READY; READY
};
static_assert(offsetof(Header, mutex) == 256, "tests/soak/soak_garbage.py spares the mutex by its place");

// Tells all peers, and throws Damaged. `what`: a noun with its article.
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void damaged(Header& header, const char* what) {
  header.damaged.store(1);
  header.readable.notify();
  header.writable.notify();
  throw Damaged(std::string("ShmChannel: ") + what +
                " in the shared memory is damaged; only datapipes may write there. Find the process that wrote there, and make "
                "a new channel.");
}

}  // namespace datapipes::shm
