#include "limits/futex_hop.h"

#if defined(__linux__)
#include <chrono>
#include <stdexcept>

#include "shm/futex.h"

namespace datapipes {

namespace {

using shm::Clock;
using shm::Word;

void wait_for(Word& word, std::uint32_t wanted) {
  const auto began = Clock::now();
  for (auto seen = word.load(); seen != wanted; seen = word.load()) {
    shm::futex_wait(word, seen, std::chrono::seconds(1));
    if (Clock::now() - began > std::chrono::seconds(10))
      throw std::runtime_error("futex_hops: the other process does not answer.");
  }
}

void tell(Word& word, std::uint32_t value) {
  word.store(value);
  shm::futex_wake_all(word);
}

}  // namespace

std::vector<double> futex_hops(std::span<std::byte> words, std::int64_t hops, bool first) {
  constexpr std::size_t kApart = 64;  // so that each word has a cache line
  if (words.size() < 2 * kApart || reinterpret_cast<std::uintptr_t>(words.data()) % alignof(Word) != 0) {
    throw std::invalid_argument("futex_hops: 128 aligned bytes are needed.");
  }
  Word& there = *reinterpret_cast<Word*>(words.data());
  Word& back = *reinterpret_cast<Word*>(words.data() + kApart);
  std::vector<double> seconds;
  for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(hops); ++i) {
    if (first) {
      const auto began = Clock::now();
      tell(there, i);
      wait_for(back, i);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count() / 2);
    } else {
      wait_for(there, i);
      tell(back, i);
    }
  }
  return seconds;
}

}  // namespace datapipes
#endif
