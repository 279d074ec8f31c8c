// slots.h: the slots of a channel and the room for their messages: the transitions of PROTOCOL.md, section 2. The
// caller holds the mutex for every call. The tags are the truth; rebuild() computes everything else from them.
// Throws Damaged if the segment has a value that no peer writes. A walk over a list takes at most as many steps as there
// are slots, and every returned extent lies in the data bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shm/state.h"

namespace datapipes::shm {

struct Extent {
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
};

class Slots {
 public:
  Slots(Header& header, Slot* slots, const Layout& layout)
      : header_(header), slots_(slots, layout.num_slots), capacity_(layout.capacity), data_bytes_(layout.data_bytes) {
    used_.reserve(slots_.size());
    ready_.reserve(slots_.size());
  }

  void rebuild();  // called once at the beginning, and after a process died with the mutex; allocates nothing

  // Copies, for the steps that a caller makes without the mutex.
  struct Reserved {
    std::uint32_t slot;
    Extent extent;
    std::uint64_t epoch;
  };
  // Returns the slot reserved for `bytes` (a multiple of kAlignment, at least one). Returns none if `capacity` messages are
  // WRITING or READY, or if no gap is large enough.
  std::optional<Reserved> reserve(std::uint32_t peer, std::uint64_t bytes, Kind kind, std::uint64_t epoch);
  bool publish(std::uint32_t peer, const Reserved& mine);  // false: the epoch was reset meanwhile; the slot is free again

  struct Taken {
    std::uint32_t slot;
    Extent extent;
    Kind kind;
    std::uint64_t epoch;
    bool keep;  // false: the caller copies the message out and drops the slot; held messages must leave room for others
  };
  std::optional<Taken> take(std::uint32_t peer);  // the oldest READY message

  std::uint64_t drop_stale();              // frees READY slots below the fence; returns how many
  std::uint32_t reap(std::uint32_t peer);  // frees the slots of `peer`; returns how many of them were WRITING
  bool owns(std::uint32_t peer) const;     // whether `peer` has a slot WRITING or HELD that is not dropped
  std::uint32_t num_ready() const;
  std::uint64_t epoch() const;      // the newest that was begun
  std::uint64_t fence() const;      // at most epoch()
  std::uint64_t delivered() const;  // at most epoch() + 1

  struct Room {
    std::uint64_t used_bytes = 0, held = 0, held_bytes = 0;
  };
  Room room() const;

  Slot& operator[](std::uint32_t slot) {
    if (slot >= slots_.size()) damaged(header_, "an index");
    return slots_[slot];
  }
  const Slot& operator[](std::uint32_t slot) const { return const_cast<Slots&>(*this)[slot]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }

 private:
  bool is_stale(const Slot& slot) const { return slot.epoch.get() < fence(); }
  Tag tag_of(const Slot& slot) const;
  Extent extent_of(const Slot& slot) const;

  void free(std::uint32_t slot);
  template <class Visit>
  void sweep(const Visit& visit);
  void link_by_address(std::uint32_t slot, std::uint32_t previous);
  void unlink_by_address(std::uint32_t slot);
  void append_ready(std::uint32_t slot);
  void remove_ready(std::uint32_t slot);
  void one_less_occupied();

  Header& header_;
  std::span<Slot> slots_;
  std::uint32_t capacity_;
  std::uint64_t data_bytes_;
  // For rebuild(), allocated for all slots: if memory ran out under the mutex, the channel would be lost.
  std::vector<std::pair<Extent, std::uint32_t>> used_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ready_;  // sequence, slot
};

}  // namespace datapipes::shm
