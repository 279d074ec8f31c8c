#include "limits/futex_hop.h"

#include <chrono>
#include <stdexcept>

#include "shm/futex.h"

namespace datapipes {

namespace {

using shm::Clock;
using shm::Word;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

Word& word_in(std::span<std::byte> memory) {
  if (memory.size() < sizeof(Word) || reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Word) != 0) {
    throw std::invalid_argument("futex_hops: the memory must hold 4 bytes, aligned to 4. Pass a shared mapping.");
  }
  return *reinterpret_cast<Word*>(memory.data());
}

}  // namespace

std::vector<double> send_futex_hops(std::span<std::byte> memory, std::int64_t hops, double pace_s) {
  Word& word = word_in(memory);
  std::vector<double> times;
  for (std::int64_t i = 0; i < hops; ++i) {
    for (const auto began = now(); now() - began < pace_s;) {
    }
    times.push_back(now());
    word.fetch_add(1);
    shm::futex_wake_all(word);
  }
  return times;
}

std::vector<double> receive_futex_hops(std::span<std::byte> memory, std::int64_t hops, std::uint32_t had) {
  Word& word = word_in(memory);
  std::vector<double> times;
  for (std::uint32_t i = had + 1; i <= had + static_cast<std::uint64_t>(hops); ++i) {
    const auto began = now();
    for (auto seen = word.load(); seen < i; seen = word.load()) {
      shm::futex_wait(word, seen, std::chrono::seconds(1));
      if (now() - began > 10) throw std::runtime_error("futex_hops: no hop arrived for 10 s. Start the sending process.");
    }
    times.push_back(now());
  }
  return times;
}

}  // namespace datapipes
