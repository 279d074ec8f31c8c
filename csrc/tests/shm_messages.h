// shm_messages.h: numbered messages for the tests of the queue in shared memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "shm/queue.h"

namespace datapipes::shm_messages {

using namespace std::chrono_literals;
using shm::Kind;
using shm::Queue;
using shm::Received;

inline constexpr auto kAtOnce = 0s;
inline constexpr auto kBound = 20s;  // limit for events that should happen at once

inline const Queue::Tick kNoTick;

inline std::vector<std::byte> bytes_of(std::uint32_t number, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((number * 31 + i * 7) & 0xFF);
  if (size >= 4) std::memcpy(bytes.data(), &number, 4);
  return bytes;
}

inline bool send(Queue& queue, std::uint32_t number, std::size_t size, Queue::Timeout timeout = kAtOnce,
                 std::uint64_t epoch = 0) {
  const auto bytes = bytes_of(number, size);
  const std::span<const std::byte> piece(bytes);
  return queue.send(Kind::kMessage, epoch, {&piece, 1}, timeout, kNoTick);
}

inline Received recv(Queue& queue, Queue::Timeout timeout = kAtOnce) { return queue.recv(timeout, kNoTick); }

inline std::uint32_t number_of(const Received& received) {
  std::uint32_t number = 0;
  std::memcpy(&number, received.bytes.data(), 4);
  return number;
}

inline bool is_whole(const Received& received, std::size_t size) {
  const auto wanted = bytes_of(number_of(received), size);
  return received.bytes.size() == shm::aligned(size) && std::ranges::equal(wanted, received.bytes.first(size));
}

}  // namespace datapipes::shm_messages
