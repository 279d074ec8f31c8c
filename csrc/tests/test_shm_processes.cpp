// test_shm_processes.cpp: the queue in shared memory between processes, which are killed at every step between two writes
// to the segment (shm/step.h).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shm/process_id.h"
#include "shm/queue.h"
#include "shm/step.h"
#include "tests/check.h"
#include "tests/shm_messages.h"

namespace datapipes {
namespace {

using namespace shm_messages;

int steps_left = -1;  // steps until this process is killed; -1: never

void die_when_it_is_time(const char*) {
  if (steps_left == 0) kill(getpid(), SIGKILL);
  if (steps_left > 0) --steps_left;
}

// Runs `work` in a child that is killed at its step number `death`. Returns whether it was killed.
bool killed_at(int death, const std::function<void()>& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs, by another signal than the kill at a step
    shm::at_step = die_when_it_is_time;
    steps_left = death;
    work();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  return WIFSIGNALED(status);
}

// Receives the waiting messages, uses every part of the queue, and checks that all room is free again.
bool works(Queue& queue, const std::function<bool(std::uint32_t)>& may_wait) {
  bool right = true;
  int told = 0;
  for (;;) {
    try {
      const auto received = recv(queue);
      right &= may_wait(number_of(received)) && received.epoch >= queue.stats().fence;
    } catch (const shm::TimedOut&) {
      break;
    } catch (const shm::PeersDied&) {
      if (++told > 8) return false;
    }
  }
  const auto fence = queue.stats().fence;
  for (std::uint32_t round = 0; round < 3; ++round) {
    std::vector<Received> kept;
    for (std::uint32_t i = 0; i < 3; ++i) right &= send(queue, 700 + i, 100 + 50 * i, kBound, fence);
    for (std::uint32_t i = 0; i < 3; ++i) kept.push_back(recv(queue, kBound));
    for (std::uint32_t i = 0; i < 3; ++i) right &= number_of(kept[i]) == 700 + i && is_whole(kept[i], 100 + 50 * i);
    kept.erase(kept.begin() + 1);
  }
  right &= send(queue, 800, queue.data_bytes(), kBound, fence);  // all room at once: nothing has leaked
  right &= is_whole(recv(queue, kBound), queue.data_bytes());
  const auto stats = queue.stats();
  return right && stats.room.used_bytes == 0 && stats.room.held == 0 && stats.unread == 0;
}

struct Scene {
  const char* name;
  std::function<void(Queue&)> before;  // in the parent
  std::function<void(Queue&)> work;    // in the child that dies
};

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = {
      {"sends two", [](Queue& queue) { send(queue, 1, 100); },
       [](Queue& queue) {
         send(queue, 2, 300);
         send(queue, 3, 64);
       }},
      {"receives, keeps one, lets one go",
       [](Queue& queue) {
         for (std::uint32_t i = 1; i < 4; ++i) send(queue, i, 200);
       },
       [](Queue& queue) {
         auto first = recv(queue), second = recv(queue);
         first = {};
         send(queue, 4, 64);
         recv(queue);
       }},
      {"copies out", [](Queue& queue) { send(queue, 1, 900); }, [](Queue& queue) { recv(queue); }},
      {"resets",
       [](Queue& queue) {
         for (std::uint32_t i = 1; i < 4; ++i) send(queue, i, 100, kAtOnce, i - 1);
       },
       [](Queue& queue) {
         queue.reset(2);
         send(queue, 9, 64, kAtOnce, 1);
       }},
      {"comes and goes", [](Queue&) {},
       [](Queue& queue) {
         const auto again = Queue::attach(dup(queue.descriptor()));
         send(*again, 1, 64);
         again->leave(true);
       }},
  };
  return all;
}

void a_death_at_any_step_leaves_a_queue_that_works() {
  for (const auto& scene : scenes()) {
    int deaths = 0;
    for (;; ++deaths) {
      const auto queue = Queue::create(4, 1024);
      scene.before(*queue);
      if (!killed_at(deaths, [&] { scene.work(*queue); })) break;
      const bool fine = works(*queue, [](std::uint32_t number) { return number >= 1 && number <= 9; });
      if (!fine) std::printf("  %s, killed at step %d\n", scene.name, deaths);
      CHECK(fine);
    }
    std::printf("  %s: %d deaths\n", scene.name, deaths);
    CHECK(deaths > 3);
  }
}

void a_death_while_another_one_is_being_repaired_does_no_harm() {
  for (const auto& scene : {scenes()[0], scenes()[1]}) {
    int both = 0;
    bool more = true;
    for (int first = 0; more; first += 3) {
      for (int second = 0;; second += 2) {
        const auto queue = Queue::create(4, 1024);
        scene.before(*queue);
        more = killed_at(first, [&] { scene.work(*queue); });
        if (!more) break;
        const bool again = killed_at(second, [&] {
          try {
            recv(*queue, 0s);
          } catch (const std::runtime_error&) {
          }
          _exit(0);
        });
        CHECK(works(*queue, [](std::uint32_t number) { return number >= 1 && number <= 9; }));
        if (!again) break;
        ++both;
      }
    }
    std::printf("  %s: %d pairs of deaths\n", scene.name, both);
    CHECK(both > 20);
  }
}

void the_dead_are_told_apart_from_the_living() {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const shm::ProcessId here = shm::this_process();
  CHECK(here.pid == getpid());
  CHECK(!shm::has_ended(here));
  shm::ProcessId other{.pid = child, .started = 0, .pid_namespace = here.pid_namespace};
  CHECK(!shm::has_ended(other));
  other.started = here.started + 1'000'000'000;  // the pid was used again
  CHECK(shm::has_ended(other));
  other.pid_namespace += 1;  // another namespace cannot be judged from here
  CHECK(!shm::has_ended(other));
  other = {.pid = child, .started = 0, .pid_namespace = here.pid_namespace};
  kill(child, SIGKILL);
  siginfo_t info{};
  CHECK(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(shm::has_ended(other));  // a zombie
  CHECK(survives([&] {           // the kernel knows it even without /proc
    shm::ProcessId there = other;
    there.pid_namespace = 0;
    if (chroot("/proc/self/fdinfo") == 0 && !shm::has_ended(there)) _exit(1);
  }));
  waitpid(child, nullptr, 0);
  CHECK(shm::has_ended(other));
}

std::atomic<int> allocations{0};  // the hooks stay, and other tests have threads

void count_allocations(const volatile void*, std::size_t) { ++allocations; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloced)(const volatile void*, std::size_t),
                                                         void (*freed)(const volatile void*));
#endif

// Dies with the mutex, so that the next process that locks it rebuilds the slots.
void die_with_the_mutex(Queue& queue) {
  CHECK(killed_at(0, [&] {
    (void)reinterpret_cast<shm::Header*>(queue.memory().data())->mutex.lock(kBound);
    DATAPIPES_SHM_STEP("dies with the mutex");
  }));
}

void what_a_death_left_is_repaired_without_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  CHECK(__sanitizer_install_malloc_and_free_hooks(count_allocations, [](const volatile void*) {}) > 0);
#endif
  const auto queue = Queue::create(40, 1 << 14);
  for (std::uint32_t i = 0; i < 40; ++i) send(*queue, i, 64);
  die_with_the_mutex(*queue);
  static int before = 0, during = -1;
  shm::at_step = [](const char* name) {
    if (std::string_view(name) == "rebuild begins") before = allocations;
    if (std::string_view(name) == "rebuild counts") during = allocations - before;
  };
  CHECK(queue->size() == 40);
  shm::at_step = nullptr;
  CHECK(during == 0);
}

void leaving_wakes_the_others_even_if_it_fails() {
  const auto queue = Queue::create(4, 1024);
  auto& header = *reinterpret_cast<shm::Header*>(queue->memory().data());
  const auto readable = header.readable.prepare(), writable = header.writable.prepare();
  die_with_the_mutex(*queue);
  shm::at_step = [](const char* name) {
    if (std::string_view(name) == "rebuild begins") throw shm::TimedOut("a test");
  };
  CHECK_THROWS(shm::TimedOut, (queue->close(), 0));
  shm::at_step = nullptr;
  CHECK(header.readable.word != readable);
  CHECK(header.writable.word != writable);
}

void a_receiver_is_told_of_a_dead_sender_and_a_sender_of_dead_receivers() {
  const auto queue = Queue::create(2, 1024);
  CHECK(killed_at(6, [&] { send(*queue, 1, 64); }));
  std::string said;
  try {
    recv(*queue);
  } catch (const shm::PeersDied& error) {
    said = error.what();
    CHECK(error.pids.size() == 1);
  }
  CHECK(said.find("died") != std::string::npos);
  CHECK_THROWS(shm::PeersDied, recv(*queue, std::nullopt));  // no process is left to send: does not wait forever

  const auto full = Queue::create(1, 1024);
  send(*full, 1, 64);
  const pid_t receiver = fork();
  if (receiver == 0) {
    const auto kept = recv(*full);
    for (;;) pause();
  }
  while (full->stats().room.held == 0) std::this_thread::yield();
  send(*full, 2, 64, kBound);
  kill(receiver, SIGKILL);
  CHECK_THROWS(shm::PeersDied, send(*full, 3, 64, std::nullopt));
  waitpid(receiver, nullptr, 0);
  CHECK(number_of(recv(*full)) == 2);
}

void a_sender_that_dies_gives_its_turn_up() {
  const auto queue = Queue::create(4, 256);
  send(*queue, 1, 256);
  CHECK(killed_at(-1, [&] {
    const auto bytes = bytes_of(2, 64);
    const std::span<const std::byte> piece(bytes);
    queue->send(Kind::kMessage, 0, {&piece, 1}, kBound, [] { kill(getpid(), SIGKILL); });  // once it waits
  }));
  CHECK(number_of(recv(*queue)) == 1);
  CHECK(send(*queue, 3, 64, kBound));
  CHECK(number_of(recv(*queue)) == 3);
}

void what_a_peer_holds_stays_after_it_has_left() {
  const auto queue = Queue::create(4, 256);
  const auto other = Queue::attach(dup(queue->descriptor()));
  send(*queue, 1, 64);
  const auto held = recv(*other);
  other->leave(false);
  CHECK(killed_at(-1, [&] {
    const auto third = Queue::attach(dup(queue->descriptor()));
    kill(getpid(), SIGKILL);
  }));
  CHECK_THROWS(shm::PeersDied, recv(*queue, kBound));
  CHECK(queue->stats().room.held == 1);
  CHECK(is_whole(held, 64));
}

std::span<shm::Peer> peers_of(Queue& queue) {
  const auto layout = reinterpret_cast<shm::Header*>(queue.memory().data())->layout.get();
  return {reinterpret_cast<shm::Peer*>(queue.memory().data() + layout.peers_offset), layout.num_peers};
}

void an_entry_lasts_as_long_as_its_peer_has_something() {
  const auto queue = Queue::create(4, 256);
  const auto idle = Queue::attach(dup(queue->descriptor())), sender = Queue::attach(dup(queue->descriptor()));
  send(*queue, 1, 128);
  const auto held = recv(*queue);
  send(*queue, 2, 128);
  idle->leave(false);
  CHECK(peers_of(*queue)[1].state == shm::PeerState::kFree);
  std::atomic<bool> waits{false}, left{false};
  std::thread waiter([&] {
    const auto bytes = bytes_of(3, 64);
    const std::span<const std::byte> piece(bytes);
    const Queue::Tick tick = [&] {
      waits.store(true);
      while (!left.load()) std::this_thread::yield();
    };
    CHECK_THROWS(shm::Closed, sender->send(Kind::kMessage, 0, {&piece, 1}, kBound, tick));
  });
  while (!waits.load()) std::this_thread::yield();
  sender->leave(false);  // while it has the turn
  left.store(true);
  CHECK(peers_of(*queue)[2].state == shm::PeerState::kLeft);
  waiter.join();
}

void a_table_full_of_the_dead_has_room() {
  const auto queue = Queue::create(4, 256);
  for (const bool alive : {true, false}) {
    for (auto& peer : peers_of(*queue).subspan(1)) {
      peer.id.set(shm::this_process());
      if (!alive) peer.id.set({.pid = 0x3FFF'FFFF, .started = 0, .pid_namespace = shm::this_process().pid_namespace});
      peer.state = shm::PeerState::kHere;
    }
    if (alive) CHECK_THROWS(std::runtime_error, Queue::attach(dup(queue->descriptor())));
    if (!alive) CHECK(Queue::attach(dup(queue->descriptor())) != nullptr);
  }
}

void a_fork_frees_nothing_of_its_parent() {
  const auto queue = Queue::create(4, 1024);
  send(*queue, 1, 600);
  send(*queue, 2, 64);
  auto copied = recv(*queue);
  auto held = std::make_unique<Received>(recv(*queue));
  CHECK(!killed_at(-1, [&] {
    held.reset();
    _exit(queue->stats().room.held == 1 ? 0 : 1);
  }));
  CHECK(queue->stats().room.held == 1);
  CHECK(is_whole(*held, 64));
}

void a_copy_is_closed_with_its_original() {
  const auto queue = Queue::create(4, 1024);
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char go = 0;
    alarm(60);
    if (read(ends[0], &go, 1) != 1) _exit(2);
    try {
      send(*queue, 1, 64);
    } catch (const shm::Closed&) {
      _exit(0);
    }
    _exit(1);
  }
  queue->close();
  CHECK(write(ends[1], "x", 1) == 1);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

FORKING_SUITE(test_shm_processes) {
  RUN(the_dead_are_told_apart_from_the_living);
  RUN(a_death_at_any_step_leaves_a_queue_that_works);
  RUN(a_death_while_another_one_is_being_repaired_does_no_harm);
  RUN(what_a_death_left_is_repaired_without_memory);
  RUN(leaving_wakes_the_others_even_if_it_fails);
  RUN(a_receiver_is_told_of_a_dead_sender_and_a_sender_of_dead_receivers);
  RUN(a_sender_that_dies_gives_its_turn_up);
  RUN(what_a_peer_holds_stays_after_it_has_left);
  RUN(an_entry_lasts_as_long_as_its_peer_has_something);
  RUN(a_table_full_of_the_dead_has_room);
  RUN(a_fork_frees_nothing_of_its_parent);
  RUN(a_copy_is_closed_with_its_original);
}

}  // namespace datapipes
