// store.h: stores values of records as entries of a target. A value outside the range of the target's dtype is refused;
// floats are rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "tfrecord/columns.h"

namespace datapipes::tfrecord {

struct Half {
  std::uint16_t bits;
};

// Returns the nearest half, ties to even; infinity from 65520 on.
inline Half half_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  // Floats in [0.5, 1) are spaced like subnormal halves, so the addition rounds.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000;
  const std::uint32_t normal = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
  std::uint32_t half = size < 0x38800000 ? subnormal : normal;
  half = size >= 0x477ff000 ? 0x7c00 : half;
  half = size > 0x7f800000 ? 0x7e00 : half;
  return {static_cast<std::uint16_t>(sign | half)};
}

template <class T>
void put(T entry, std::byte* to) {
  std::memcpy(to, &entry, sizeof entry);  // targets have any alignment
}

// Stores a value; false if it is finite and becomes infinite.
template <class T>
bool store_float(float value, std::byte* to) {
  if constexpr (std::is_same_v<T, Half>) {
    put(half_of(value), to);
    return std::abs(value) < 65520.0F || !std::isfinite(value);
  } else {
    put(static_cast<T>(value), to);
    return true;
  }
}

// Stores a value; false if the entry is not exactly the value.
template <class T>
bool store_int(std::int64_t value, std::byte* to) {
  if constexpr (std::is_same_v<T, Half>) {
    const auto as_float = static_cast<float>(value);
    put(half_of(as_float), to);
    return -65504 <= value && value <= 65504 && (std::bit_cast<std::uint32_t>(as_float) & 0x1fff) == 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    const auto turned = static_cast<T>(value);
    put(turned, to);
    return turned < static_cast<T>(0x1p63) && static_cast<std::int64_t>(turned) == value;  // 2^63 is no int64
  } else {
    put(static_cast<T>(value), to);
    return std::in_range<T>(value);
  }
}

// Calls `use` with a value of the C++ type of the dtype.
template <class Use>
decltype(auto) with_type(DType dtype, Use&& use) {
  switch (dtype) {
    case DType::kFloat16:
      return use(Half{});
    case DType::kFloat32:
      return use(float{});
    case DType::kFloat64:
      return use(double{});
    case DType::kInt8:
      return use(std::int8_t{});
    case DType::kInt16:
      return use(std::int16_t{});
    case DType::kInt32:
      return use(std::int32_t{});
    case DType::kInt64:
      return use(std::int64_t{});
    case DType::kUInt8:
      return use(std::uint8_t{});
    case DType::kUInt16:
      return use(std::uint16_t{});
    case DType::kUInt32:
      return use(std::uint32_t{});
    case DType::kUInt64:
      break;
  }
  return use(std::uint64_t{});
}

inline const char* name_of(DType dtype) {
  constexpr const char* kNames[] = {"float16", "float32", "float64", "int8",   "int16", "int32",
                                    "int64",   "uint8",   "uint16",  "uint32", "uint64"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace datapipes::tfrecord
