// part_map.h: the part that owns each node or edge of a type: one value for each id, or contiguous ranges.
//   PartMap views an array of the partition book: uint8 or int16 [num_ids], or the bounds int64 [num_parts + 1] of ranges.
//   owners(op, ids, out) writes the part of each id, which the caller has checked to be in [0, num_ids). The lines of a dense
//   map are prefetched.
// Throws std::invalid_argument (ValueError) if the map has a value that is no part. Touches no Python object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>

#include "common/inside.h"

namespace datapipes {

using PartNumber = std::uint16_t;
inline constexpr std::int64_t kMostParts = std::int64_t{1} << 15;

class PartMap {
 public:
  using Stored = std::variant<std::span<const std::uint8_t>, std::span<const std::int16_t>, std::span<const std::int64_t>>;

  PartMap(Stored stored, std::int64_t num_parts, std::int64_t num_ids)
      : stored_(stored), num_parts_(num_parts), num_ids_(num_ids) {
    if (num_parts < 1 || num_parts > kMostParts)
      throw std::invalid_argument("the number of parts must be in [1, 32768], got " + std::to_string(num_parts) + ".");
    if (const auto* bounds = std::get_if<std::span<const std::int64_t>>(&stored)) {
      const auto parts = static_cast<std::size_t>(num_parts);
      if (bounds->size() != parts + 1 || bounds->front() != 0 || bounds->back() != num_ids ||
          !std::is_sorted(bounds->begin(), bounds->end()))
        throw std::invalid_argument("the ranges of " + std::to_string(num_parts) + " parts must ascend from 0 to " +
                                    std::to_string(num_ids) + ", the number of ids.");
    } else if (size() != num_ids) {
      throw std::invalid_argument("the map of parts has " + std::to_string(size()) + " entries for " + std::to_string(num_ids) +
                                  " ids.");
    }
  }

  std::int64_t num_parts() const { return num_parts_; }
  std::int64_t num_ids() const { return num_ids_; }

  template <class Id>
  void owners(const char* op, std::span<const Id> ids, PartNumber* out) const {
    std::visit([&](const auto& stored) { look_up(op, stored, ids, out); }, stored_);
  }

 private:
  static constexpr std::size_t kAhead = 32;  // ids between a prefetch and its use

  std::int64_t size() const {
    return std::visit([](const auto& stored) { return std::ssize(stored); }, stored_);
  }

  template <class Value, class Id>
  void look_up(const char* op, std::span<const Value> parts, std::span<const Id> ids, PartNumber* out) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) __builtin_prefetch(&parts[static_cast<std::size_t>(ids[i + kAhead])]);
      const std::int64_t part = parts[static_cast<std::size_t>(ids[i])];
      if (!is_inside(part, num_parts_)) {  // the book may be unverified
        throw std::invalid_argument(std::string(op) + ": the partition book gives the id " + std::to_string(ids[i]) +
                                    " to part " + std::to_string(part) + ", parts are in [0, " + std::to_string(num_parts_) +
                                    "). The book is damaged: open it with verify=True.");
      }
      out[i] = static_cast<PartNumber>(part);
    }
  }

  template <class Id>
  void look_up(const char*, std::span<const std::int64_t> bounds, std::span<const Id> ids, PartNumber* out) const {
    for (const Id id : ids) {
      const auto after = std::upper_bound(bounds.begin() + 1, bounds.end() - 1, static_cast<std::int64_t>(id));
      *out++ = static_cast<PartNumber>(after - bounds.begin() - 1);
    }
  }

  Stored stored_;
  std::int64_t num_parts_, num_ids_;
};

}  // namespace datapipes
