// slots.h: the slots of a channel and the room for their messages: the transitions of PROTOCOL.md, section 2. The
// caller holds the mutex for every call. The tags are the truth; rebuild() computes everything else from them.
// Throws std::runtime_error if the content of the segment is inconsistent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shm/state.h"

namespace datapipes::shm {

class Slots {
 public:
  Slots(Header& header, Slot* slots) : header_(header), slots_(slots, header.num_slots) {}

  void rebuild();  // called once at the beginning, and after a process died with the mutex

  // Returns the slot reserved for `bytes` (a multiple of kAlignment). Returns none if `capacity` messages are WRITING
  // or READY, or if no gap is large enough.
  std::optional<std::uint32_t> reserve(std::uint32_t peer, std::uint64_t bytes, Kind kind, std::uint64_t epoch);
  bool publish(std::uint32_t slot);  // false: the epoch was reset meanwhile; the slot is free again

  struct Taken {
    std::uint32_t slot;
    bool keep;  // false: the caller copies the message out and drops the slot; held messages must leave room for others
  };
  std::optional<Taken> take(std::uint32_t peer);  // the oldest READY message

  std::uint64_t drop_stale();              // frees READY slots below the fence; returns how many
  std::uint32_t reap(std::uint32_t peer);  // frees the slots of `peer`; returns how many of them were WRITING
  bool owns(std::uint32_t peer) const;     // whether `peer` has a slot WRITING or HELD that is not dropped

  struct Room {
    std::uint64_t used_bytes = 0, held = 0, held_bytes = 0;
  };
  Room room() const;

  Slot& operator[](std::uint32_t slot) {
    if (slot >= slots_.size()) damaged("an index");
    return slots_[slot];
  }
  const Slot& operator[](std::uint32_t slot) const { return const_cast<Slots&>(*this)[slot]; }

 private:
  [[noreturn]] static void damaged(const char* what);
  bool is_stale(const Slot& slot) const { return slot.epoch < header_.fence; }
  static Tag tag_of(const Slot& slot) { return Tag::from(slot.tag.load(std::memory_order_acquire)); }

  void free(std::uint32_t slot);
  void sweep();  // frees the slots that their owners dropped
  bool leaves_room(std::uint32_t candidate) const;
  void link_by_address(std::uint32_t slot, std::uint32_t previous);
  void unlink_by_address(std::uint32_t slot);
  void append_ready(std::uint32_t slot);
  void remove_ready(std::uint32_t slot);

  Header& header_;
  std::span<Slot> slots_;
};

}  // namespace datapipes::shm
