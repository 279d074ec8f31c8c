// test_shm_garbage.cpp: the shared memory of a channel is overwritten, at chosen places, at random, and while calls run.
// Every call returns or throws one of the errors of queue.h, and none waits beyond its timeout.
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "shm/queue.h"
#include "shm/state.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using namespace std::chrono_literals;
using shm::Damaged;
using shm::Header;
using shm::Kind;
using shm::kNone;
using shm::Queue;
using shm::Received;
using shm::Slot;

const Queue::Tick kNoTick;

bool send(Queue& queue, std::size_t size, Queue::Timeout timeout = 0s, std::uint64_t epoch = 0) {
  const std::vector<std::byte> bytes(size, std::byte{7});
  const std::span<const std::byte> piece(bytes);
  return queue.send(Kind::kMessage, epoch, {&piece, 1}, timeout, kNoTick);
}

Received recv(Queue& queue, Queue::Timeout timeout = 0s) { return queue.recv(timeout, kNoTick); }

// The parts of a segment, as another process that maps it sees them.
struct Segment {
  Header& header;
  std::span<shm::Peer> peers;
  std::span<Slot> slots;
  std::span<std::byte> data;

  static Segment of(Queue& queue) {
    std::byte* const begin = queue.memory().data();
    auto& header = *reinterpret_cast<Header*>(begin);
    const auto layout = header.layout.get();
    return {.header = header,
            .peers = {reinterpret_cast<shm::Peer*>(begin + layout.peers_offset), layout.num_peers},
            .slots = {reinterpret_cast<Slot*>(begin + layout.slots_offset), layout.num_slots},
            .data = {begin + layout.data_offset, layout.data_bytes}};
  }

  // Everything but the mutex.
  std::vector<std::span<std::byte>> places() const {
    auto* const begin = reinterpret_cast<std::byte*>(&header);
    auto* const mutex = reinterpret_cast<std::byte*>(&header.mutex);
    return {{begin, mutex},
            {mutex + sizeof header.mutex, begin + sizeof(Header)},
            std::as_writable_bytes(peers.first(16)),
            std::as_writable_bytes(peers),
            std::as_writable_bytes(slots.first(8)),
            std::as_writable_bytes(slots),
            data};
  }
};

// --- chosen places

constexpr std::size_t kKindOfLock = offsetof(pthread_mutex_t, __data.__kind);
constexpr std::uint32_t kNoThread = 0x3F00'0000;  // Linux gives threads numbers below 2^22

// A queue of 4 messages with one HELD, two READY, and a slot that was used and is free again.
struct Scene {
  std::shared_ptr<Queue> queue = Queue::create(4, 4096);
  Segment segment = Segment::of(*queue);
  Received held;

  Scene() {
    send(*queue, 64);
    held = recv(*queue);
    send(*queue, 64);
    recv(*queue);
    for (int i = 0; i < 2; ++i) send(*queue, 64);
  }
  void put_into_lock(std::size_t at, std::uint32_t word) {
    std::memcpy(reinterpret_cast<std::byte*>(&segment.header.mutex) + at, &word, sizeof word);
  }
  std::uint32_t ready() const { return segment.header.first_ready.get(); }
};

struct Damage {
  const char* name;
  std::function<void(Scene&)> make;
  std::function<void(Queue&)> call;  // throws Damaged
};

void waits(Queue& queue) { (void)queue.size(); }
void sends(Queue& queue) { send(queue, 64); }
void receives(Queue& queue) { recv(queue); }

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all = {
      {"a slot that points to itself",
       [](Scene& scene) {
         auto& slot = scene.segment.slots[scene.ready()];
         slot.next_by_address.set(scene.ready());
         slot.offset.set(0 - shm::kAlignment);
       },
       sends},
      {"a circle by address",
       [](Scene& scene) { scene.segment.slots[scene.segment.header.last_by_address.get()].next_by_address.set(scene.ready()); },
       sends},
      {"a slot without its neighbour by address",
       [](Scene& scene) { scene.segment.slots[scene.ready()].previous_by_address.set(kNone); },
       [](Queue& queue) {
         recv(queue);
         send(queue, 64);
       }},
      {"an extent beyond the data", [](Scene& scene) { scene.segment.slots[scene.ready()].bytes.set(1 << 20); }, receives},
      {"an extent that wraps",
       [](Scene& scene) {
         scene.segment.slots[scene.ready()].offset.set(64);
         scene.segment.slots[scene.ready()].bytes.set(0 - shm::kAlignment);
       },
       receives},
      {"an extent off the alignment", [](Scene& scene) { scene.segment.slots[scene.ready()].offset.set(1); }, receives},
      {"an empty extent", [](Scene& scene) { scene.segment.slots[scene.ready()].bytes.set(0); }, receives},
      {"a circle of messages", [](Scene& scene) { scene.segment.slots[scene.ready()].next.set(scene.ready()); },
       [](Queue& queue) {
         recv(queue);
         recv(queue);
       }},
      {"no first message", [](Scene& scene) { scene.segment.header.first_ready.set(kNone); }, receives},
      {"a first message that is none", [](Scene& scene) { scene.segment.header.first_ready.set(9); }, receives},
      {"a first message out of range", [](Scene& scene) { scene.segment.header.first_ready.set(1 << 30); }, receives},
      {"a state that there is not", [](Scene& scene) { scene.segment.slots[scene.ready()].tag.store(77); }, receives},
      {"a kind that there is not", [](Scene& scene) { scene.segment.slots[scene.ready()].kind.set(3); }, receives},
      {"an epoch below 0", [](Scene& scene) { scene.segment.slots[scene.ready()].epoch.set(~0ULL); }, receives},
      {"a fence above the epoch", [](Scene& scene) { scene.segment.header.fence.set(5); }, sends},
      {"an epoch above all", [](Scene& scene) { scene.segment.header.epoch.set(~0ULL); },
       [](Queue& queue) { (void)queue.epoch(); }},
      {"an epoch received that never began", [](Scene& scene) { scene.segment.header.delivered.set(1 << 20); },
       [](Queue& queue) { queue.reset(std::nullopt); }},
      {"too many messages", [](Scene& scene) { scene.segment.header.num_occupied.set(100); }, sends},
      {"too few messages", [](Scene& scene) { scene.segment.header.num_occupied.set(1); }, sends},
      {"too many unread", [](Scene& scene) { scene.segment.header.num_ready.set(5); }, [](Queue& queue) { (void)queue.size(); }},
      {"no free slot", [](Scene& scene) { scene.segment.header.first_free.set(kNone); }, sends},
      {"a free slot out of range", [](Scene& scene) { scene.segment.header.first_free.set(1 << 20); }, sends},
      {"a free slot that is used", [](Scene& scene) { scene.segment.header.first_free.set(scene.ready()); }, sends},
      {"a turn of nobody", [](Scene& scene) { scene.segment.header.turn.store(500ULL << 32); }, sends},
      {"a turn of no peer", [](Scene& scene) { scene.segment.header.turn.store(~0ULL); }, sends},
      {"the caller's entry freed", [](Scene& scene) { scene.segment.peers[0].state = shm::PeerState::kFree; }, sends},
      {"the caller's entry given away",
       [](Scene& scene) {
         auto id = scene.segment.peers[0].id.get();
         id.pid += 1;
         scene.segment.peers[0].id.set(id);
       },
       receives},
      {"a state of a peer that there is not", [](Scene& scene) { scene.segment.peers[1].state = static_cast<shm::PeerState>(3); },
       [](Queue& queue) { Queue::attach(dup(queue.descriptor())); }},
      {"a lock of no thread", [](Scene& scene) { scene.put_into_lock(0, kNoThread); }, waits},
      {"a lock of nobody that is waited for", [](Scene& scene) { scene.put_into_lock(0, FUTEX_WAITERS); }, waits},
      {"a lock of this very thread", [](Scene& scene) { scene.put_into_lock(0, static_cast<std::uint32_t>(gettid())); }, waits},
      {"a lock of another kind", [](Scene& scene) { scene.put_into_lock(kKindOfLock, PTHREAD_MUTEX_ERRORCHECK); }, waits},
      {"the state of another slot", [](Scene& scene) { scene.segment.slots[40].tag.store(4); },
       [](Queue& queue) { (void)queue.stats(); }},
  };
  return all;
}

void what_no_peer_writes_is_told() {
  for (const auto& damage : damages()) {
    Scene scene;
    damage.make(scene);
    for (int again = 0; again < 2; ++again) {  // the second call finds the damage too, or the mark that the first left
      bool told = false;
      try {
        damage.call(*scene.queue);
      } catch (const Damaged& error) {
        told = std::string(error.what()).find("damaged; only datapipes may write there. Find") != std::string::npos;
      }
      if (!told) std::printf("  %s, call %d\n", damage.name, again);
      CHECK(told);
    }
  }
}

void what_the_creator_wrote_is_not_read_again() {
  Scene scene;
  auto layout = scene.segment.header.layout.get();
  layout.data_bytes = std::uint64_t{1} << 40;
  layout.capacity = layout.num_slots = 1U << 31;
  layout.data_offset = layout.slots_offset = layout.peers_offset = std::uint64_t{1} << 50;
  scene.segment.header.layout.set(layout);
  CHECK_THROWS(std::length_error, send(*scene.queue, 1 << 20));
  CHECK(scene.queue->capacity() == 4);
  CHECK(scene.queue->data_bytes() == 4096);
  CHECK(recv(*scene.queue).bytes.size() == 64);
  CHECK(send(*scene.queue, 64));
  CHECK(scene.queue->stats().room.held == 1);
  CHECK(scene.queue->dropped_slots().empty());
  CHECK_THROWS(std::invalid_argument, Queue::attach(dup(scene.queue->descriptor())));
}

void a_message_that_was_overwritten_while_it_was_sent_is_not_published() {
  for (const std::uint64_t tag : {std::uint64_t{0}, std::uint64_t{5} << 32 | 1, std::uint64_t{2}}) {
    Scene scene;
    const auto slot = scene.segment.header.first_free.get();
    shm::Slots slots(scene.segment.header, scene.segment.slots.data(), scene.segment.header.layout.get());
    const auto mine = slots.reserve(0, 64, Kind::kMessage, 0);
    CHECK(mine && mine->slot == slot);
    scene.segment.slots[slot].tag.store(tag);
    CHECK_THROWS(Damaged, slots.publish(0, *mine));
  }
}

void a_peer_that_dies_in_a_damaged_channel_leaves_an_error() {
  Scene scene;
  const pid_t child = fork();
  if (child == 0) {
    (void)scene.segment.header.mutex.lock(1s);
    scene.segment.slots[scene.ready()].offset.set(1);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  CHECK_THROWS(Damaged, recv(*scene.queue));  // the state that the dead process left cannot be repaired
  CHECK_THROWS(Damaged, recv(*scene.queue));
  CHECK_THROWS(Damaged, send(*scene.queue, 64));
  scene.queue->close();
}

void who_waits_for_a_lock_sees_that_another_one_found_garbage() {
  Scene scene;
  scene.put_into_lock(0, static_cast<std::uint32_t>(getppid()));  // an existing thread, which does not hold the lock
  scene.segment.header.damaged.store(1);
  CHECK_THROWS(Damaged, recv(*scene.queue, std::nullopt));
  CHECK_THROWS(Damaged, scene.queue->size());
}

// --- at random

class Vandal {
 public:
  Vandal(const Segment& segment, std::uint64_t rng_seed)
      : found_(segment.header.damaged), places_(segment.places()), random_(rng_seed) {}

  void write() {
    if (random_() % 4 != 0) found_.store(0);  // so that the calls go on in the damaged segment
    const auto place = places_[random_() % places_.size()];
    const std::size_t width = std::array{1, 4, 8, 8, 64}[random_() % 5];
    const auto at = random_() % (place.size() / width) * width;
    std::array<std::uint64_t, 8> value{};
    for (auto& word : value) word = one(place);
    std::memcpy(place.data() + at, value.data(), width);
  }

 private:
  std::uint64_t one(std::span<const std::byte> place) {
    const std::uint64_t any = random_();
    std::uint64_t found = 0;
    std::memcpy(&found, place.data() + any % (place.size() / 8) * 8, 8);
    switch (random_() % 7) {
      case 0:
        return any;
      case 1:
        return 0;
      case 2:
        return ~std::uint64_t{0};
      case 3:
        return any % 200;
      case 4:
        return std::uint64_t{1} << any % 64;
      case 5:
        return found;
      default:
        return found + any % 3 - 1;
    }
  }
  std::atomic<std::uint32_t>& found_;
  std::vector<std::span<std::byte>> places_;
  std::mt19937_64 random_;
};

// One call, chosen at random. The errors of queue.h count as a result; any other error leaves the function.
void call(Queue& queue, std::mt19937_64& random, std::vector<Received>& kept) {
  const Queue::Timeout timeout = random() % 4 == 0 ? 2ms : 0ms;
  try {
    switch (random() % 12) {
      case 0:
        queue.reset(random() % 2 == 0 ? std::nullopt : std::optional<std::uint64_t>(random() % 4));
        break;
      case 1:
        (void)queue.stats();
        break;
      case 2:
        (void)queue.size();
        break;
      case 3:
        (void)queue.epoch();
        break;
      case 4:
        Queue::attach(dup(queue.descriptor()));
        break;
      case 5:
        queue.let_go(queue.dropped_slots());
        break;
      case 6:
      case 7:
      case 8: {
        auto received = recv(queue, timeout);
        std::byte sum{};
        for (const auto byte : received.bytes) sum ^= byte;  // all of it can be read
        received.bytes[0] = sum;
        kept.push_back(std::move(received));
        break;
      }
      default:
        send(queue, 64 * (1 + random() % 20), timeout, random() % 3);
    }
  } catch (const shm::TimedOut&) {
  } catch (const shm::Closed&) {
  } catch (const shm::PeersDied&) {
  } catch (const Damaged&) {
  } catch (const std::invalid_argument&) {  // a reset to an earlier epoch; a damaged header
  }
  if (kept.size() > 6) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(random() % kept.size()));
}

void random_garbage_ends_in_an_error() {
  CHECK(survives([] {
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
      std::mt19937_64 random(seed);
      const auto queue = seed % 2 == 0 ? Queue::create(2, 2048) : Queue::create(32, 1 << 16);
      queue->release_in_two_steps(seed % 5 == 0);
      Vandal vandal(Segment::of(*queue), seed);
      std::vector<Received> kept;
      for (int i = 0; i < 10; ++i) call(*queue, random, kept);
      for (int round = 0; round < 6; ++round) {
        vandal.write();
        for (int i = 0; i < 6; ++i) call(*queue, random, kept);
      }
    }
  }));
}

void garbage_written_during_the_calls_ends_in_an_error() {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const bool fine = survives([&] {
      const auto queue = seed % 2 == 0 ? Queue::create(2, 2048) : Queue::create(32, 1 << 16);
      const pid_t parent = getpid();
      const pid_t writer = fork();
      if (writer == 0) {
        Vandal vandal(Segment::of(*queue), seed);
        while (getppid() == parent) vandal.write();
        _exit(0);
      }
      std::mt19937_64 random(seed);
      std::vector<Received> kept;
      for (const auto until = shm::Clock::now() + 100ms; shm::Clock::now() < until;) call(*queue, random, kept);
      kill(writer, SIGKILL);
      waitpid(writer, nullptr, 0);
    });
    if (!fine) std::printf("  seed %d\n", static_cast<int>(seed));
    CHECK(fine);
  }
}

}  // namespace

FORKING_SUITE(test_shm_garbage) {
  RUN(what_no_peer_writes_is_told);
  RUN(what_the_creator_wrote_is_not_read_again);
  RUN(a_message_that_was_overwritten_while_it_was_sent_is_not_published);
  RUN(a_peer_that_dies_in_a_damaged_channel_leaves_an_error);
  RUN(who_waits_for_a_lock_sees_that_another_one_found_garbage);
  RUN(random_garbage_ends_in_an_error);
  RUN(garbage_written_during_the_calls_ends_in_an_error);
}

}  // namespace datapipes
