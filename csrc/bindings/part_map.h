// part_map.h: a PartMap over the array that a map of the partition book stores.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "bindings/numpy.h"
#include "partition/part_map.h"

namespace datapipes {

// `stored` is uint8 or int16 [num_ids], or the bounds int64 [num_parts + 1] of ranges; the caller keeps it.
inline PartMap part_map(py::handle stored, std::int64_t num_parts, std::int64_t num_ids) {
  const auto viewed = [&]<class T>(T) { return view(py::reinterpret_borrow<Array<T>>(stored), "the map of parts"); };
  if (py::isinstance<Array<std::uint8_t>>(stored)) return {viewed(std::uint8_t{}), num_parts, num_ids};
  if (py::isinstance<Array<std::int16_t>>(stored)) return {viewed(std::int16_t{}), num_parts, num_ids};
  if (py::isinstance<Array<std::int64_t>>(stored)) return {viewed(std::int64_t{}), num_parts, num_ids};
  throw py::type_error("the map of parts must be contiguous: uint8 or int16, or the bounds of ranges in int64.");
}

}  // namespace datapipes
