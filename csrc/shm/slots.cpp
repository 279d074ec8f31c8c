#include "shm/slots.h"

#if defined(__linux__)
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "shm/step.h"

namespace datapipes::shm {

void Slots::damaged(const char* what) {
  throw std::runtime_error(std::string("ShmChannel: ") + what + " in the shared segment is damaged. Make a new channel.");
}

void Slots::rebuild() {
  DATAPIPES_SHM_STEP("rebuild begins");
  std::vector<std::uint32_t> used, ready;
  std::uint32_t free = kNone, occupied = 0;
  for (auto i = static_cast<std::uint32_t>(slots_.size()); i-- > 0;) {
    auto state = tag_of(slots_[i]).state;
    if (state == SlotState::kReady && is_stale(slots_[i])) {  // a process died during reset: finish it
      slots_[i].tag.store(Tag{}.word(), std::memory_order_release);
      state = SlotState::kFree;
      ++header_.counters.dropped;
    }
    if (state == SlotState::kFree) {
      slots_[i].next = free;
      free = i;
      continue;
    }
    used.push_back(i);
    if (state == SlotState::kReady) ready.push_back(i);
    occupied += state != SlotState::kHeld;
    if (slots_[i].offset > header_.data_bytes || slots_[i].bytes > header_.data_bytes - slots_[i].offset) damaged("an extent");
  }
  std::ranges::sort(used, {}, [&](std::uint32_t i) { return slots_[i].offset; });
  std::ranges::sort(ready, {}, [&](std::uint32_t i) { return slots_[i].sequence; });
  header_.first_by_address = header_.last_by_address = kNone;
  DATAPIPES_SHM_STEP("rebuild empties the list");
  for (const auto i : used) link_by_address(i, header_.last_by_address);
  header_.first_ready = header_.last_ready = kNone;
  header_.num_ready = 0;
  for (const auto i : ready) {
    append_ready(i);
    header_.next_sequence = std::max(header_.next_sequence, slots_[i].sequence + 1);
  }
  DATAPIPES_SHM_STEP("rebuild counts");
  header_.first_free = free;
  header_.num_occupied = occupied;
}

std::optional<std::uint32_t> Slots::reserve(std::uint32_t peer, std::uint64_t bytes, Kind kind, std::uint64_t epoch) {
  sweep();
  if (header_.num_occupied >= header_.capacity || header_.first_free == kNone) return std::nullopt;
  std::uint32_t previous = kNone;  // the extent before the gap
  std::uint64_t begin = 0;
  for (auto i = header_.first_by_address; i != kNone; i = (*this)[i].next_by_address) {
    const Slot& used = (*this)[i];
    if (used.offset < begin) damaged("the list by address");  // this also ends a circular list
    if (used.offset - begin >= bytes) break;
    begin = used.offset + std::max(used.bytes, kAlignment);
    previous = i;
  }
  if (begin > header_.data_bytes || header_.data_bytes - begin < bytes) return std::nullopt;

  const auto slot = header_.first_free;
  Slot& reserved = (*this)[slot];
  const auto after = reserved.next;
  reserved.offset = begin;
  DATAPIPES_SHM_STEP("reserve has written the offset");
  reserved.bytes = bytes;
  reserved.kind = static_cast<std::uint32_t>(kind);
  reserved.epoch = epoch;
  reserved.dropped.store(static_cast<std::uint32_t>(Dropped::kNo), std::memory_order_relaxed);
  DATAPIPES_SHM_STEP("reserve comes to the tag");
  reserved.tag.store(Tag{SlotState::kWriting, peer}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("reserve has written the tag");
  header_.first_free = after;
  DATAPIPES_SHM_STEP("reserve has taken the slot from the list");
  link_by_address(slot, previous);
  ++header_.num_occupied;
  return slot;
}

bool Slots::publish(std::uint32_t slot) {
  Slot& whole = (*this)[slot];
  if (tag_of(whole).state != SlotState::kWriting) damaged("a message that was being sent");
  if (is_stale(whole)) {
    free(slot);
    return false;
  }
  whole.sequence = header_.next_sequence++;
  DATAPIPES_SHM_STEP("publish comes to the tag");
  whole.tag.store(Tag{SlotState::kReady, kNone}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("publish has written the tag");
  append_ready(slot);
  return true;
}

std::optional<Slots::Taken> Slots::take(std::uint32_t peer) {
  const auto slot = header_.first_ready;
  if (slot == kNone) return std::nullopt;
  Slot& oldest = (*this)[slot];
  if (tag_of(oldest).state != SlotState::kReady || oldest.offset > header_.data_bytes ||
      oldest.bytes > header_.data_bytes - oldest.offset) {
    damaged("the queue");
  }
  sweep();
  const bool keep = leaves_room(slot);
  // Written before the tag, since rebuild() cannot compute them from tags.
  header_.delivered = std::max(header_.delivered, oldest.epoch + 1);
  header_.epoch = std::max(header_.epoch, oldest.epoch + (oldest.kind == static_cast<std::uint32_t>(Kind::kEndOfEpoch)));
  DATAPIPES_SHM_STEP("take comes to the tag");
  oldest.tag.store(Tag{SlotState::kHeld, peer}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("take has written the tag");
  remove_ready(slot);
  DATAPIPES_SHM_STEP("take has taken it from the queue");
  --header_.num_occupied;
  return Taken{slot, keep};
}

std::uint64_t Slots::drop_stale() {
  std::uint64_t dropped = 0;
  for (auto i = header_.first_ready; i != kNone;) {
    const auto next = (*this)[i].next;
    if (is_stale((*this)[i])) {
      free(i);
      ++dropped;
    }
    i = next;
  }
  return dropped;
}

std::uint32_t Slots::reap(std::uint32_t peer) {
  std::uint32_t lost = 0;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const auto tag = tag_of(slots_[i]);
    if (tag.owner != peer || (tag.state != SlotState::kWriting && tag.state != SlotState::kHeld)) continue;
    lost += tag.state == SlotState::kWriting;
    free(i);
    DATAPIPES_SHM_STEP("reap has freed a slot");
  }
  return lost;
}

bool Slots::owns(std::uint32_t peer) const {
  return std::ranges::any_of(slots_, [&](const Slot& slot) {
    const auto tag = tag_of(slot);
    return (tag.state == SlotState::kWriting || tag.state == SlotState::kHeld) && tag.owner == peer &&
           slot.dropped.load() != static_cast<std::uint32_t>(Dropped::kYes);
  });
}

Slots::Room Slots::room() const {
  Room room;
  for (const auto& slot : slots_) {
    const auto state = tag_of(slot).state;
    if (state == SlotState::kFree || slot.dropped.load() == static_cast<std::uint32_t>(Dropped::kYes)) continue;
    room.used_bytes += slot.bytes;
    if (state != SlotState::kHeld) continue;
    ++room.held;
    room.held_bytes += slot.bytes;
  }
  return room;
}

void Slots::free(std::uint32_t slot) {
  Slot& used = (*this)[slot];
  const auto state = tag_of(used).state;
  used.tag.store(Tag{}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("free has written the tag");
  if (state == SlotState::kReady) remove_ready(slot);
  if (state != SlotState::kHeld) --header_.num_occupied;
  DATAPIPES_SHM_STEP("free comes to the list by address");
  unlink_by_address(slot);
  DATAPIPES_SHM_STEP("free has left the list by address");
  used.next = header_.first_free;
  header_.first_free = slot;
}

void Slots::sweep() {
  std::uint64_t from = 0;
  for (auto i = header_.first_by_address; i != kNone;) {
    const Slot& used = (*this)[i];
    const auto next = used.next_by_address;
    if (used.offset < from) damaged("the list by address");
    from = used.offset + kAlignment;
    // SYNC slot-dropped: all reads of the owner happened before it set the mark
    if (used.dropped.load(std::memory_order_acquire) == static_cast<std::uint32_t>(Dropped::kYes)) free(i);
    i = next;
  }
}

// Whether receivers may hold `candidate` too. With it, the HELD slots must leave a gap of half of the data bytes and
// `capacity` slots for senders.
bool Slots::leaves_room(std::uint32_t candidate) const {
  std::uint64_t begin = 0, largest = 0;
  std::uint32_t held = 1;
  for (auto i = header_.first_by_address; i != kNone; i = (*this)[i].next_by_address) {
    const Slot& used = (*this)[i];
    if (i != candidate) {
      if (tag_of(used).state != SlotState::kHeld) continue;
      ++held;
    }
    if (used.offset > begin) largest = std::max(largest, used.offset - begin);
    begin = used.offset + used.bytes;
  }
  largest = std::max(largest, header_.data_bytes - std::min(begin, header_.data_bytes));
  return largest >= header_.data_bytes / 2 && held <= header_.num_slots - header_.capacity;
}

void Slots::link_by_address(std::uint32_t slot, std::uint32_t previous) {
  Slot& linked = (*this)[slot];
  const auto next = previous == kNone ? header_.first_by_address : (*this)[previous].next_by_address;
  linked.previous_by_address = previous;
  linked.next_by_address = next;
  (previous == kNone ? header_.first_by_address : (*this)[previous].next_by_address) = slot;
  DATAPIPES_SHM_STEP("a list by address is half linked");
  (next == kNone ? header_.last_by_address : (*this)[next].previous_by_address) = slot;
}

void Slots::unlink_by_address(std::uint32_t slot) {
  const Slot& gone = (*this)[slot];
  const auto previous = gone.previous_by_address, next = gone.next_by_address;
  (previous == kNone ? header_.first_by_address : (*this)[previous].next_by_address) = next;
  DATAPIPES_SHM_STEP("a list by address is half unlinked");
  (next == kNone ? header_.last_by_address : (*this)[next].previous_by_address) = previous;
}

void Slots::append_ready(std::uint32_t slot) {
  (*this)[slot].next = kNone;
  (header_.last_ready == kNone ? header_.first_ready : (*this)[header_.last_ready].next) = slot;
  DATAPIPES_SHM_STEP("a message is half in the queue");
  header_.last_ready = slot;
  ++header_.num_ready;
}

void Slots::remove_ready(std::uint32_t slot) {
  std::uint32_t before = kNone, i = header_.first_ready;
  for (std::uint32_t seen = 0; i != slot; before = i, i = (*this)[i].next) {
    if (i == kNone || ++seen > header_.num_ready) damaged("the queue");
  }
  const auto after = (*this)[slot].next;
  (before == kNone ? header_.first_ready : (*this)[before].next) = after;
  DATAPIPES_SHM_STEP("a message is half out of the queue");
  if (header_.last_ready == slot) header_.last_ready = before;
  --header_.num_ready;
}

}  // namespace datapipes::shm
#endif
