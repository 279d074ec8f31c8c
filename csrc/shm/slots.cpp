#include "shm/slots.h"

#include <algorithm>

#include "shm/step.h"

namespace datapipes::shm {

Tag Slots::tag_of(const Slot& slot) const {
  const auto tag = Tag::from(slot.tag.load(std::memory_order_acquire));
  if (tag.state > SlotState::kHeld) damaged(header_, "the state of a slot");
  return tag;
}

Extent Slots::extent_of(const Slot& slot) const {
  const Extent extent{.offset = slot.offset.get(), .bytes = slot.bytes.get()};
  if (extent.bytes < kAlignment || extent.offset % kAlignment != 0 || extent.bytes % kAlignment != 0 ||
      extent.offset > data_bytes_ || extent.bytes > data_bytes_ - extent.offset) {
    damaged(header_, "an extent");
  }
  return extent;
}

std::uint64_t Slots::epoch() const {
  const auto epoch = header_.epoch.get();
  if (epoch > kMostEpoch + 1) damaged(header_, "the epoch");
  return epoch;
}

std::uint64_t Slots::fence() const {
  const auto fence = header_.fence.get();
  if (fence > epoch()) damaged(header_, "the fence of the epochs");
  return fence;
}

std::uint64_t Slots::delivered() const {
  const auto delivered = header_.delivered.get();
  if (delivered > epoch() + 1) damaged(header_, "the count of the epochs");
  return delivered;
}

std::uint32_t Slots::num_ready() const {
  const auto ready = header_.num_ready.get();
  if (ready > capacity_) damaged(header_, "the number of messages");
  return ready;
}

// Frees the slots that their owners dropped, and calls visit(index, state, extent) for each other used slot in the order of the
// extents. It visits every used slot, so it also compares the derived data with the tags.
template <class Visit>
void Slots::sweep(const Visit& visit) {
  std::uint64_t begin = 0;
  std::uint32_t seen = 0, used = 0, occupied = 0, ready = 0;
  for (auto i = header_.first_by_address.get(); i != kNone;) {
    const Slot& slot = (*this)[i];
    const auto extent = extent_of(slot);
    if (extent.offset < begin || ++seen > size()) damaged(header_, "the list by address");
    begin = extent.end();
    const auto next = slot.next_by_address.get();
    // SYNC slot-dropped: all reads of the owner happened before it set the mark
    if (slot.dropped.load(std::memory_order_acquire) == static_cast<std::uint32_t>(Dropped::kYes)) {
      free(i);
    } else {
      const auto state = tag_of(slot).state;
      if (state == SlotState::kFree) damaged(header_, "the list by address");
      ++used;
      occupied += state != SlotState::kHeld;
      ready += state == SlotState::kReady;
      visit(i, state, extent);
    }
    i = next;
  }
  if (occupied > capacity_ || occupied != header_.num_occupied.get() || ready != header_.num_ready.get()) {
    damaged(header_, "the number of messages");
  }
  if (used < size() && header_.first_free.get() == kNone) damaged(header_, "the list of free slots");
}

void Slots::rebuild() {
  DATAPIPES_SHM_STEP("rebuild begins");
  used_.clear();
  ready_.clear();
  std::uint32_t free = kNone, occupied = 0;
  for (auto i = size(); i-- > 0;) {
    Slot& slot = slots_[i];
    auto [state, owner] = tag_of(slot);
    if (state == SlotState::kReady && is_stale(slot)) {  // a process died during reset: finish it
      slot.tag.store(Tag{}.word(), std::memory_order_release);
      state = SlotState::kFree;
      ++header_.counters.dropped;
    }
    if (state == SlotState::kFree) {
      slot.next.set(free);
      free = i;
      continue;
    }
    if (state != SlotState::kReady && owner >= kNumPeers) damaged(header_, "the owner of a slot");
    used_.emplace_back(extent_of(slot), i);
    if (state == SlotState::kReady) ready_.emplace_back(slot.sequence.get(), i);
    occupied += state != SlotState::kHeld;
  }
  std::ranges::sort(used_, {}, [](const auto& one) { return one.first.offset; });
  std::ranges::sort(ready_);
  header_.first_by_address.set(kNone);
  header_.last_by_address.set(kNone);
  DATAPIPES_SHM_STEP("rebuild empties the list");
  std::uint64_t begin = 0;
  auto last = kNone;
  for (const auto& [extent, i] : used_) {
    if (extent.offset < begin) damaged(header_, "an extent");
    begin = extent.end();
    link_by_address(i, last);
    last = i;
  }
  header_.first_ready.set(kNone);
  header_.last_ready.set(kNone);
  header_.num_ready.set(0);
  for (const auto& [sequence, i] : ready_) {
    append_ready(i);
    header_.next_sequence.raise_to(sequence + 1);
  }
  DATAPIPES_SHM_STEP("rebuild counts");
  header_.first_free.set(free);
  header_.num_occupied.set(occupied);
}

std::optional<Slots::Reserved> Slots::reserve(std::uint32_t peer, std::uint64_t bytes, Kind kind, std::uint64_t epoch) {
  std::uint32_t previous = kNone;  // the extent before the first gap that is large enough
  std::uint64_t begin = 0;
  bool found = false;
  sweep([&](std::uint32_t i, SlotState, const Extent& used) {
    found = found || used.offset - begin >= bytes;
    if (found) return;
    begin = used.end();
    previous = i;
  });
  const auto slot = header_.first_free.get();
  if (header_.num_occupied.get() >= capacity_ || slot == kNone) return std::nullopt;
  if (!found && data_bytes_ - begin < bytes) return std::nullopt;

  Slot& reserved = (*this)[slot];
  if (tag_of(reserved).state != SlotState::kFree) damaged(header_, "the list of free slots");
  const auto after = reserved.next.get();
  reserved.offset.set(begin);
  DATAPIPES_SHM_STEP("reserve has written the offset");
  reserved.bytes.set(bytes);
  reserved.kind.set(static_cast<std::uint32_t>(kind));
  reserved.epoch.set(epoch);
  reserved.dropped.store(static_cast<std::uint32_t>(Dropped::kNo), std::memory_order_relaxed);
  DATAPIPES_SHM_STEP("reserve comes to the tag");
  reserved.tag.store(Tag{SlotState::kWriting, peer}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("reserve has written the tag");
  header_.first_free.set(after);
  DATAPIPES_SHM_STEP("reserve has taken the slot from the list");
  link_by_address(slot, previous);
  header_.num_occupied.add(1);
  return Reserved{.slot = slot, .extent = {.offset = begin, .bytes = bytes}, .epoch = epoch};
}

bool Slots::publish(std::uint32_t peer, const Reserved& mine) {
  Slot& whole = (*this)[mine.slot];
  const auto tag = tag_of(whole);
  if (tag.state != SlotState::kWriting || tag.owner != peer || whole.offset.get() != mine.extent.offset ||
      whole.bytes.get() != mine.extent.bytes || whole.epoch.get() != mine.epoch) {
    damaged(header_, "a message that was being sent");
  }
  if (mine.epoch < fence()) {
    free(mine.slot);
    return false;
  }
  whole.sequence.set(header_.next_sequence.get());
  header_.next_sequence.add(1);
  DATAPIPES_SHM_STEP("publish comes to the tag");
  whole.tag.store(Tag{SlotState::kReady, kNone}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("publish has written the tag");
  append_ready(mine.slot);
  return true;
}

std::optional<Slots::Taken> Slots::take(std::uint32_t peer) {
  const auto slot = header_.first_ready.get();
  if (slot == kNone) {
    if (header_.num_ready.get() != 0) damaged(header_, "the queue");
    return std::nullopt;
  }
  Slot& oldest = (*this)[slot];
  if (tag_of(oldest).state != SlotState::kReady) damaged(header_, "the queue");
  const auto kind = oldest.kind.get();
  Taken taken{
      .slot = slot, .extent = extent_of(oldest), .kind = static_cast<Kind>(kind), .epoch = oldest.epoch.get(), .keep = true};
  if (kind > static_cast<std::uint32_t>(Kind::kError)) damaged(header_, "the kind of a message");
  if (taken.epoch > kMostEpoch) damaged(header_, "the epoch of a message");
  (void)fence();
  // The receiver may keep the message if the HELD slots then leave a gap of half of the data bytes, and `capacity` slots for
  // senders.
  std::uint64_t begin = 0, largest = 0;
  std::uint32_t held = 1;
  sweep([&](std::uint32_t i, SlotState state, const Extent& used) {
    if (i != slot) {
      if (state != SlotState::kHeld) return;
      ++held;
    }
    largest = std::max(largest, used.offset - begin);
    begin = used.end();
  });
  largest = std::max(largest, data_bytes_ - begin);
  taken.keep = largest >= data_bytes_ / 2 && held <= size() - capacity_;
  // Written before the tag, since rebuild() cannot compute them from tags.
  header_.epoch.raise_to(taken.epoch + (taken.kind == Kind::kEndOfEpoch));
  header_.delivered.raise_to(taken.epoch + 1);  // after `epoch`: a death in between leaves it at most one above
  DATAPIPES_SHM_STEP("take comes to the tag");
  oldest.tag.store(Tag{SlotState::kHeld, peer}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("take has written the tag");
  remove_ready(slot);
  DATAPIPES_SHM_STEP("take has taken it from the queue");
  one_less_occupied();
  return taken;
}

std::uint64_t Slots::drop_stale() {
  std::uint64_t dropped = 0;
  std::uint32_t seen = 0;
  for (auto i = header_.first_ready.get(); i != kNone;) {
    const auto next = (*this)[i].next.get();
    if (++seen > size()) damaged(header_, "the queue");
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
    const auto bytes = extent_of(slot).bytes;
    room.used_bytes += bytes;
    if (state != SlotState::kHeld) continue;
    ++room.held;
    room.held_bytes += bytes;
  }
  return room;
}

void Slots::free(std::uint32_t slot) {
  Slot& used = (*this)[slot];
  const auto state = tag_of(used).state;
  if (state == SlotState::kFree) damaged(header_, "a list of slots");
  used.tag.store(Tag{}.word(), std::memory_order_release);
  DATAPIPES_SHM_STEP("free has written the tag");
  if (state == SlotState::kReady) remove_ready(slot);
  if (state != SlotState::kHeld) one_less_occupied();
  DATAPIPES_SHM_STEP("free comes to the list by address");
  unlink_by_address(slot);
  DATAPIPES_SHM_STEP("free has left the list by address");
  used.next.set(header_.first_free.get());
  header_.first_free.set(slot);
}

void Slots::link_by_address(std::uint32_t slot, std::uint32_t previous) {
  Slot& linked = (*this)[slot];
  auto& to_next = previous == kNone ? header_.first_by_address : (*this)[previous].next_by_address;
  const auto next = to_next.get();
  auto& to_previous = next == kNone ? header_.last_by_address : (*this)[next].previous_by_address;
  linked.previous_by_address.set(previous);
  linked.next_by_address.set(next);
  to_next.set(slot);
  DATAPIPES_SHM_STEP("a list by address is half linked");
  to_previous.set(slot);
}

void Slots::unlink_by_address(std::uint32_t slot) {
  const Slot& gone = (*this)[slot];
  const auto previous = gone.previous_by_address.get(), next = gone.next_by_address.get();
  auto& to_next = previous == kNone ? header_.first_by_address : (*this)[previous].next_by_address;
  auto& to_previous = next == kNone ? header_.last_by_address : (*this)[next].previous_by_address;
  if (to_next.get() != slot || to_previous.get() != slot) damaged(header_, "the list by address");
  to_next.set(next);
  DATAPIPES_SHM_STEP("a list by address is half unlinked");
  to_previous.set(previous);
}

void Slots::append_ready(std::uint32_t slot) {
  (*this)[slot].next.set(kNone);
  const auto last = header_.last_ready.get();
  (last == kNone ? header_.first_ready : (*this)[last].next).set(slot);
  DATAPIPES_SHM_STEP("a message is half in the queue");
  header_.last_ready.set(slot);
  header_.num_ready.add(1);
}

void Slots::remove_ready(std::uint32_t slot) {
  std::uint32_t before = kNone, seen = 0;
  for (auto i = header_.first_ready.get(); i != slot; i = (*this)[i].next.get()) {
    if (i == kNone || ++seen > size()) damaged(header_, "the queue");
    before = i;
  }
  const auto after = (*this)[slot].next.get();
  (before == kNone ? header_.first_ready : (*this)[before].next).set(after);
  DATAPIPES_SHM_STEP("a message is half out of the queue");
  if (header_.last_ready.get() == slot) header_.last_ready.set(before);
  header_.num_ready.add(static_cast<std::uint32_t>(-1));
}

void Slots::one_less_occupied() {
  const auto occupied = header_.num_occupied.get();
  if (occupied == 0) damaged(header_, "the number of messages");
  header_.num_occupied.set(occupied - 1);
}

}  // namespace datapipes::shm
