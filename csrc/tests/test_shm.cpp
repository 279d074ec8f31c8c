// test_shm.cpp: the queue in shared memory within one process: room and transitions, waiting, many threads.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "limits/futex_hop.h"
#include "shm/queue.h"
#include "shm/step.h"
#include "tests/check.h"
#include "tests/shm_messages.h"

namespace datapipes {
namespace {

using namespace shm_messages;

bool in_place(Queue& queue, const Received& received) {
  const auto memory = queue.memory();
  return received.bytes.data() >= memory.data() && received.bytes.data() < memory.data() + memory.size();
}

// --- one process

void messages_arrive_whole_and_in_order() {
  const auto queue = Queue::create(4, 4096);
  for (std::uint32_t i = 0; i < 50; ++i) {
    for (const std::uint32_t size : {4U, 64U, 65U, 1000U}) CHECK(send(*queue, i + size, size));
    for (const std::uint32_t size : {4U, 64U, 65U, 1000U}) {
      const auto received = recv(*queue);
      CHECK(number_of(received) == i + size);
      CHECK(is_whole(received, size));
      CHECK(in_place(*queue, received));
    }
  }
  CHECK(queue->stats().counters.messages == 200);
  CHECK(queue->stats().counters.send_waits == 0);
  CHECK(queue->stats().counters.receive_waits == 0);
  CHECK(queue->size() == 0);
}

void pieces_begin_at_multiples_of_the_alignment() {
  const auto queue = Queue::create(4, 4096);
  const auto one = bytes_of(1, 5), two = bytes_of(2, 64), three = bytes_of(3, 7);
  const std::vector<std::span<const std::byte>> pieces = {one, two, {}, three};
  CHECK(queue->send(Kind::kError, 7, pieces, kAtOnce, kNoTick));
  const auto received = recv(*queue);
  CHECK(received.kind == Kind::kError);
  CHECK(received.epoch == 7);
  CHECK(received.bytes.size() == 192);
  CHECK(std::ranges::equal(one, received.bytes.first(5)));
  CHECK(std::ranges::equal(two, received.bytes.subspan(64, 64)));
  CHECK(std::ranges::equal(three, received.bytes.subspan(128, 7)));
}

void a_message_larger_than_the_segment_changes_nothing() {
  const auto queue = Queue::create(4, 1024);
  for (int position = 0; position < 5; ++position) {
    CHECK_THROWS(std::length_error, send(*queue, 1, 1025));
    CHECK(send(*queue, 2, 1024));  // the whole segment, wherever the last message was
    CHECK(is_whole(recv(*queue), 1024));
    CHECK(send(*queue, 3, 64 * 3));
    CHECK(is_whole(recv(*queue), 64 * 3));
  }
}

void large_messages_arrive_whole() {
  const auto queue = Queue::create(4, 1 << 24);
  for (const std::size_t size : {(1U << 23) - 1, 1U << 23, (1U << 23) + 63, (1U << 24) - 64}) {
    CHECK(send(*queue, 5, size));
    CHECK(is_whole(recv(*queue), size));
  }
}

void messages_are_let_go_in_any_order() {
  const auto queue = Queue::create(4, 64 * 16);
  send(*queue, 0, 64);
  const auto oldest = recv(*queue);
  for (std::uint32_t i = 1; i < 100; ++i) {
    CHECK(send(*queue, i, 64 * (1 + i % 8)));  // up to half of the segment
    CHECK(is_whole(recv(*queue), 64 * (1 + i % 8)));
  }
  CHECK(is_whole(oldest, 64));
  CHECK(queue->stats().room.held == 1);
}

void what_is_kept_leaves_half_of_the_segment() {
  std::mt19937 random(5);
  const auto queue = Queue::create(8, 64 * 32);
  std::vector<Received> kept;
  bool whole = true;
  for (std::uint32_t i = 0; i < 2'000; ++i) {
    const std::size_t size = 64 * (1 + random() % 16);
    whole &= send(*queue, i, size);  // never waits: up to half of the segment always finds room
    auto received = recv(*queue);
    whole &= number_of(received) == i && is_whole(received, size);
    if (random() % 4 != 0) kept.push_back(std::move(received));
    if (kept.size() > 20) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(random() % kept.size()));
    whole &= queue->stats().room.held_bytes <= 64 * 16;
  }
  CHECK(whole);
  CHECK(queue->stats().counters.copied_out > 100);
  CHECK(queue->stats().counters.copied_out < 1'900);
  kept.clear();
  CHECK(send(*queue, 1, 64 * 32));
}

void more_messages_are_kept_than_the_capacity() {
  const auto queue = Queue::create(1, 64 * 1024);
  std::vector<Received> kept;
  for (std::uint32_t i = 0; i < 300; ++i) {
    CHECK(send(*queue, i, 64));
    kept.push_back(recv(*queue));
  }
  CHECK(queue->stats().room.held == shm::kFewestHeld);
  for (std::uint32_t i = 0; i < 300; ++i) CHECK(number_of(kept[i]) == i);
}

void both_limits_block() {
  const auto few = Queue::create(2, 4096);
  send(*few, 1, 64);
  send(*few, 2, 64);
  CHECK_THROWS(shm::TimedOut, send(*few, 3, 64));
  const auto first = recv(*few);
  CHECK(send(*few, 3, 64));
  CHECK_THROWS(shm::TimedOut, send(*few, 4, 64, 30ms));

  const auto small = Queue::create(8, 256);
  send(*small, 1, 128);
  send(*small, 2, 128);
  CHECK_THROWS(shm::TimedOut, send(*small, 3, 64));
  auto held = recv(*small);
  CHECK_THROWS(shm::TimedOut, send(*small, 3, 64));  // received, but still held
  held = {};
  CHECK(send(*small, 3, 64));
  CHECK_THROWS(shm::TimedOut, recv(*Queue::create(1, 64), 1ms));
}

void a_large_message_gets_its_turn() {
  const auto queue = Queue::create(8, 256);
  send(*queue, 0, 64);
  std::atomic<bool> waits{false};
  std::thread large([&] {
    const Queue::Tick tick = [&] { waits.store(true); };
    const auto bytes = bytes_of(9, 256);
    const std::span<const std::byte> piece(bytes);
    CHECK(queue->send(Kind::kMessage, 0, {&piece, 1}, kBound, tick));
  });
  while (!waits.load()) std::this_thread::yield();
  CHECK_THROWS(shm::TimedOut, send(*queue, 1, 64));  // there is room, but the large message has the turn
  CHECK(number_of(recv(*queue)) == 0);
  CHECK(number_of(recv(*queue, kBound)) == 9);
  large.join();
  CHECK(send(*queue, 1, 64));
  CHECK(queue->stats().counters.send_waits == 1);
  CHECK(number_of(recv(*queue)) == 1);
}

void epochs_are_fenced() {
  const auto queue = Queue::create(8, 4096);
  send(*queue, 1, 64, kAtOnce, 0);
  send(*queue, 2, 64, kAtOnce, 0);
  send(*queue, 3, 64, kAtOnce, 1);
  CHECK(number_of(recv(*queue)) == 1);
  CHECK(queue->reset(std::nullopt) == 1);
  CHECK(queue->reset(std::nullopt) == 1);  // a second reset changes nothing
  CHECK(!send(*queue, 4, 64, kAtOnce, 0));
  CHECK(number_of(recv(*queue)) == 3);
  CHECK(queue->reset(5) == 5);
  CHECK_THROWS(std::invalid_argument, queue->reset(4));
  CHECK(!send(*queue, 5, 64, kAtOnce, 4));
  CHECK(send(*queue, 6, 64, kAtOnce, 5));
  CHECK(number_of(recv(*queue)) == 6);
  CHECK(queue->epoch() == 5);
  CHECK(queue->send(Kind::kEndOfEpoch, 5, {}, kAtOnce, kNoTick));
  CHECK(recv(*queue).kind != Kind::kError);
  CHECK(queue->epoch() == 6);
  CHECK(queue->stats().counters.dropped == 3);
  CHECK(queue->stats().room.used_bytes == 0);
}

void a_reset_wakes_a_sender_of_the_old_epoch() {
  const auto queue = Queue::create(1, 256);
  send(*queue, 1, 64);
  std::thread sender([&] { CHECK(!send(*queue, 2, 64, kBound)); });
  while (queue->stats().unread != 1) std::this_thread::yield();
  queue->reset(1);
  sender.join();
  CHECK_THROWS(shm::TimedOut, recv(*queue));
}

void a_message_whose_epoch_is_reset_while_it_is_copied_is_dropped() {
  static Queue* receivers = nullptr;
  const auto queue = Queue::create(4, 256);
  receivers = queue.get();
  shm::at_step = [](const char* name) {
    if (name == std::string_view("send has copied") && receivers->stats().fence == 0) receivers->reset(1);
  };
  CHECK(!send(*queue, 1, 256, kAtOnce, 0));
  shm::at_step = nullptr;
  CHECK_THROWS(shm::TimedOut, recv(*queue));
  CHECK(queue->stats().counters.dropped == 1);
  CHECK(queue->stats().counters.messages == 0);
  CHECK(send(*queue, 2, 256, kAtOnce, 1));  // its room is free again
  CHECK(number_of(recv(*queue)) == 2);
}

// Every write between two steps is made under the lock, except writes of a sender or a receiver to its own slot.
void steps_are_taken_under_the_lock() {
  static shm::Header* header = nullptr;
  static int steps = 0, without = 0;
  const auto queue = Queue::create(4, 256);
  header = reinterpret_cast<shm::Header*>(queue->memory().data());
  shm::at_step = [](const char* name) {
    const std::string_view step = name;
    if (step.starts_with("send ") || step.starts_with("recv ") || step == "a message is dropped") return;
    ++steps;
    without += header->mutex.owner() != static_cast<std::int32_t>(gettid());
  };
  {
    const auto other = Queue::attach(dup(queue->descriptor()));
    other->release_in_two_steps(true);
    for (const std::uint32_t number : {1U, 2U}) send(*queue, number, 64, kAtOnce, number);
    recv(*other);
    queue->reset(3);
  }  // its slot still waited for a device
  shm::at_step = nullptr;
  CHECK(queue->stats().room.used_bytes == 0);
  CHECK(steps > 20);
  CHECK(without == 0);
}

void who_leaves_twice_is_counted_once() {
  const auto queue = Queue::create(4, 256);
  const auto other = Queue::attach(dup(queue->descriptor()));
  send(*queue, 1, 64);
  const auto held = recv(*other);
  other->leave(true);
  other->leave(true);
  CHECK(reinterpret_cast<shm::Header*>(queue->memory().data())->exits.get() == 1);
}

void a_closed_queue_gives_what_it_has_and_ends() {
  const auto queue = Queue::create(4, 4096);
  const auto other = Queue::attach(dup(queue->descriptor()));
  send(*queue, 1, 64);
  auto held = recv(*queue);
  send(*queue, 2, 64);
  std::thread waiter([&] {
    const auto second = recv(*other, kBound);
    CHECK(number_of(second) == 2);
    CHECK_THROWS(shm::Closed, recv(*other, kBound));
  });
  while (other->size() != 0) std::this_thread::yield();
  queue->close();
  queue->close();
  waiter.join();
  CHECK(is_whole(held, 64));
  CHECK_THROWS(shm::Closed, send(*queue, 3, 64));
  CHECK_THROWS(shm::Closed, recv(*queue));
  CHECK_THROWS(shm::Closed, send(*other, 3, 64));
  CHECK_THROWS(shm::Closed, queue->reset(std::nullopt));
}

void what_is_not_a_channel_is_refused() {
  CHECK_THROWS(std::invalid_argument, Queue::create(0, 4096));
  CHECK_THROWS(std::invalid_argument, Queue::create(1, 0));
  CHECK_THROWS(shm::NoMemory, Queue::create(1, std::uint64_t{1} << 60));
  CHECK_THROWS(shm::NoMemory, Queue::create(1, (std::uint64_t{1} << 62) - 1));
  CHECK_THROWS(std::invalid_argument, Queue::create(1, std::uint64_t{1} << 62));
  CHECK_THROWS(std::system_error, Queue::attach(dup(-1)));
  int ends[2];
  CHECK(pipe(ends) == 0);
  CHECK_THROWS(std::invalid_argument, Queue::attach(ends[0]));
  close(ends[1]);
  auto segment = shm::Segment::create(8192);
  try {
    Queue::attach(dup(segment.descriptor()));
    CHECK(false);
  } catch (const std::invalid_argument& error) {
    CHECK(std::string_view(error.what()).find("is not that of a channel. Pass") != std::string_view::npos);
  }
  const auto queue = Queue::create(4, 4096);
  auto* const header = reinterpret_cast<shm::Header*>(queue->memory().data());
  const auto layout = header->layout.get();
  auto other = layout;
  other.data_bytes = 1 << 20;
  header->layout.set(other);
  CHECK_THROWS(std::invalid_argument, Queue::attach(dup(queue->descriptor())));
  header->layout.set(layout);
  send(*queue, 1, 64);
  header->first_ready.set(12345);
  CHECK_THROWS(shm::Damaged, recv(*queue));
}

void a_slot_waits_for_a_device_when_told_to() {
  const auto queue = Queue::create(4, 256);
  queue->release_in_two_steps(true);
  send(*queue, 1, 128);
  CHECK(queue->dropped_slots().empty());
  recv(*queue);
  CHECK_THROWS(shm::TimedOut, send(*queue, 2, 256));
  const auto dropped = queue->dropped_slots();
  CHECK(dropped.size() == 1);
  CHECK(queue->dropped_slots().empty());
  CHECK_THROWS(shm::TimedOut, send(*queue, 2, 256));
  queue->let_go(dropped);
  CHECK(send(*queue, 2, 256));
}

// Whether an action wakes those who wait for an event.
template <class Action>
bool wakes(shm::Event& event, const Action& action) {
  const auto seen = event.prepare();
  action();
  return event.word.load() != seen;
}

void whoever_waits_is_woken() {
  const auto queue = Queue::create(4, 256);
  auto* const header = reinterpret_cast<shm::Header*>(queue->memory().data());
  Received held;
  CHECK(wakes(header->readable, [&] { send(*queue, 1, 64); }));
  CHECK(wakes(header->writable, [&] { held = recv(*queue); }));
  CHECK(wakes(header->writable, [&] { held = {}; }));
  CHECK(wakes(header->writable, [&] { queue->reset(1); }));
  queue->release_in_two_steps(true);
  send(*queue, 2, 64, kAtOnce, 1);
  recv(*queue);
  const auto dropped = queue->dropped_slots();
  CHECK(wakes(header->writable, [&] { queue->let_go(dropped); }));
  CHECK(!wakes(header->writable, [&] { queue->let_go({}); }));
  const auto other = Queue::attach(dup(queue->descriptor()));
  CHECK(wakes(header->readable, [&] { other->leave(false); }));
  CHECK(wakes(header->writable, [&] { queue->close(); }));
}

// --- threads

void threads_of_many_handles_lose_nothing() {
  constexpr std::uint32_t kSenders = 3, kReceivers = 2, kEach = 1'500;
  const auto queue = Queue::create(5, 64 * 24);
  std::vector<std::vector<std::uint32_t>> got(kReceivers);
  std::vector<std::thread> threads;
  for (std::uint32_t s = 0; s < kSenders; ++s) {
    threads.emplace_back([&, s] {
      const auto mine = Queue::attach(dup(queue->descriptor()));
      for (std::uint32_t i = 0; i < kEach; ++i) send(*mine, s << 20 | i, 4 + (i * 37 + s) % 700, kBound);
    });
  }
  for (std::uint32_t r = 0; r < kReceivers; ++r) {
    threads.emplace_back([&, r] {
      const auto mine = Queue::attach(dup(queue->descriptor()));
      std::vector<Received> kept;
      for (;;) {
        auto received = recv(*mine, kBound);
        if (received.kind == Kind::kEndOfEpoch) return;
        const auto number = number_of(received);
        if (!is_whole(received, 4 + ((number & 0xFFFFF) * 37 + (number >> 20)) % 700)) return;  // fails the counts below
        got[r].push_back(number);
        kept.push_back(std::move(received));
        if (kept.size() > 3) kept.erase(kept.begin() + number % 3);
      }
    });
  }
  for (std::uint32_t s = 0; s < kSenders; ++s) threads[s].join();
  for (std::uint32_t r = 0; r < kReceivers; ++r) queue->send(Kind::kEndOfEpoch, 0, {}, kBound, kNoTick);
  for (std::uint32_t r = 0; r < kReceivers; ++r) threads[kSenders + r].join();
  std::set<std::uint32_t> all;
  for (const auto& mine : got) {
    std::vector<std::uint32_t> next(kSenders, 0);
    for (const auto number : mine) {
      CHECK((number & 0xFFFFF) >= next[number >> 20]);  // messages of one sender stay in order
      next[number >> 20] = (number & 0xFFFFF) + 1;
      all.insert(number);
    }
  }
  CHECK(all.size() == kSenders * kEach);
  CHECK(got[0].size() + got[1].size() == kSenders * kEach);
}

void hops_are_timed_at_both_ends() {
  alignas(64) std::byte word[64] = {};
  std::vector<double> awake;
  std::thread receiver([&] { awake = receive_futex_hops(word, 20); });
  const auto sent = send_futex_hops(word, 20, 1e-4);
  receiver.join();
  CHECK(sent.size() == 20 && awake.size() == 20);
  for (std::size_t i = 0; i < sent.size(); ++i) CHECK(awake[i] >= sent[i]);
  CHECK_THROWS(std::invalid_argument, send_futex_hops(std::span(word).first(2), 1, 0));
}

}  // namespace

SUITE(test_shm) {
  RUN(messages_arrive_whole_and_in_order);
  RUN(pieces_begin_at_multiples_of_the_alignment);
  RUN(a_message_larger_than_the_segment_changes_nothing);
  RUN(large_messages_arrive_whole);
  RUN(messages_are_let_go_in_any_order);
  RUN(what_is_kept_leaves_half_of_the_segment);
  RUN(more_messages_are_kept_than_the_capacity);
  RUN(both_limits_block);
  RUN(a_large_message_gets_its_turn);
  RUN(epochs_are_fenced);
  RUN(a_reset_wakes_a_sender_of_the_old_epoch);
  RUN(a_message_whose_epoch_is_reset_while_it_is_copied_is_dropped);
  RUN(steps_are_taken_under_the_lock);
  RUN(who_leaves_twice_is_counted_once);
  RUN(a_closed_queue_gives_what_it_has_and_ends);
  RUN(what_is_not_a_channel_is_refused);
  RUN(a_slot_waits_for_a_device_when_told_to);
  RUN(whoever_waits_is_woken);
  RUN(threads_of_many_handles_lose_nothing);
  RUN(hops_are_timed_at_both_ends);
}

}  // namespace datapipes
