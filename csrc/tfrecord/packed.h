// packed.h: stores the values of a column in its target: one at a time, or a whole packed list.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/load.h"
#include "tfrecord/store.h"

namespace datapipes::tfrecord {

// Stores `count` floats; false if a finite one becomes infinite.
template <class T>
bool put_floats(const std::uint8_t* from, std::size_t count, std::byte* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, count * sizeof(float));
    return true;
  } else {
    bool all = true;
    for (std::size_t i = 0; i < count; ++i) {
      all &= store_float<T>(load<float>(from + i * sizeof(float)), to + i * sizeof(T));
    }
    return all;
  }
}

// Moves past a varint; false if it does not end before `end`, or has more than 64 bits. Bytes before `readable` >= end may be
// read.
inline bool get_varint(const std::uint8_t*& at, const std::uint8_t* end, const std::uint8_t* readable, std::uint64_t& number) {
  if (readable - at >= 8) {  // up to 8 bytes without a branch for each
    auto word = load<std::uint64_t>(at);
    const std::uint64_t ends = ~word & 0x8080808080808080;
    if (ends != 0) {
      at += std::countr_zero(ends) / 8 + 1;
      word &= ends ^ (ends - 1);  // the bytes up to the first that ends a varint
      word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
      word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
      number = (word & 0x0fffffff) | (word & 0x0fffffff00000000) >> 4;
      return at <= end;
    }
  }
  number = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at >= end) return false;
    const std::uint8_t byte = *at++;
    number |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return shift < 63 || byte <= 1;
  }
  return false;
}

// Stores the varints in [at, end); false unless there are `count` of them and T holds each exactly.
template <class T>
bool put_ints(const std::uint8_t* at, const std::uint8_t* end, const std::uint8_t* readable, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t number;
    if (!get_varint(at, end, readable, number)) return false;
    if (!store_int<T>(static_cast<std::int64_t>(number), to + i * sizeof(T))) return false;
  }
  return at == end;
}

// The functions that store a column in its target. An int column has no float functions, a float column no int functions.
struct Store {
  std::size_t entry_bytes = 0;  // 0: the column cannot be stored in this dtype
  bool (*float_value)(float, std::byte*) = nullptr;
  bool (*floats)(const std::uint8_t*, std::size_t, std::byte*) = nullptr;
  bool (*int_value)(std::int64_t, std::byte*) = nullptr;
  bool (*ints)(const std::uint8_t*, const std::uint8_t*, const std::uint8_t*, std::size_t, std::byte*) = nullptr;
};

inline Store store_of(Kind kind, DType dtype) {
  return with_type(dtype, [kind]<class T>(T) -> Store {
    if (kind == Kind::kInt64) return {.entry_bytes = sizeof(T), .int_value = store_int<T>, .ints = put_ints<T>};
    if constexpr (std::is_integral_v<T>) {
      return {};
    } else {
      return {.entry_bytes = sizeof(T), .float_value = store_float<T>, .floats = put_floats<T>};
    }
  });
}

// Stores the default values of a column, `width` of them; false if the dtype cannot hold a value.
inline bool put_default(const Column& column, const Store& store, std::byte* to) {
  bool all = true;
  for (const float value : column.default_floats) all &= store.float_value(value, std::exchange(to, to + store.entry_bytes));
  for (const std::int64_t value : column.default_ints) all &= store.int_value(value, std::exchange(to, to + store.entry_bytes));
  return all;
}

}  // namespace datapipes::tfrecord
