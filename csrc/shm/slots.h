// slots.h: the slots of a channel and the room for their messages: the transitions of PROTOCOL.md, section 2. The caller holds
// the mutex for all of them. The tags are the truth; everything else here is computed from them and can be again (rebuild).
// Throws std::runtime_error where the segment's content makes no sense.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shm/state.h"

namespace datapipes::shm {

class Slots {
 public:
  Slots(Header& header, Slot* slots) : header_(header), slots_(slots, header.num_slots) {}

  void rebuild();  // after a death under the mutex, and once to begin with

  // Returns the slot reserved for `bytes` (a multiple of kAlignment), or none: `capacity` messages wait, or there is no gap.
  std::optional<std::uint32_t> reserve(std::uint32_t peer, std::uint64_t bytes, Kind kind, std::uint64_t epoch);
  bool publish(std::uint32_t slot);  // false: its epoch was reset meanwhile, and it is free

  struct Taken {
    std::uint32_t slot;
    bool keep;  // false: copy it out and let it go, so that what receivers hold leaves room
  };
  std::optional<Taken> take(std::uint32_t peer);  // the oldest READY message

  std::uint64_t drop_stale();              // READY ones below the fence; how many
  std::uint32_t reap(std::uint32_t peer);  // frees what it had; how many messages it was writing
  bool owns(std::uint32_t peer) const;     // whether a slot is WRITING or HELD by it

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
  void sweep();  // frees those whose owner has done with them
  bool leaves_room(std::uint32_t candidate) const;
  void link_by_address(std::uint32_t slot, std::uint32_t previous);
  void unlink_by_address(std::uint32_t slot);
  void append_ready(std::uint32_t slot);
  void remove_ready(std::uint32_t slot);

  Header& header_;
  std::span<Slot> slots_;
};

}  // namespace datapipes::shm
