// frame.h: the form of messages (dicts of tensors) in shared memory: a head that names the tensors, then their bytes. Tensors
// cross by DLPack, so this works with any build of torch; datapipes/channel/shm_channel.py has the other half.
//
//   head     uint32 bytes of the head, version, number of tensors, bytes of the schema
//            schema: for each tensor uint32 length of its key, uint8 length of its dtype's name (0: DLPack has the dtype), uint8
//            DLPack code, uint8 bytes of a value, uint8 number of dimensions, the key (UTF-8), the name; padded to a multiple
//            of 8
//            all sizes of all tensors, int64
//   tensors  row-major, each at the next multiple of shm::kAlignment
//
// Messages of one kind have equal schemas, so a receiver parses each schema once and keeps the result.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/queue.h"

namespace datapipes {

inline constexpr std::uint32_t kFrameVersion = 1;

struct Head {
  std::uint32_t bytes, version, num_tensors, schema_bytes;
};

// A message to send. Tensors that are dense, contiguous and in host memory are not copied; the Frame keeps them alive.
//   plain(key, tensor, most_bytes) -> (tensor, name of its dtype or ""): called for any other value; returns a dense, contiguous
//   tensor in host memory, or raises, for example if the values take more than `most_bytes`
// Refuses every tensor that message_of would refuse.
class Frame {
 public:
  Frame(const pybind11::dict& message, const pybind11::object& to_dlpack, const pybind11::object& plain,
        std::uint64_t most_bytes);
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }

 private:
  void add(pybind11::handle key, pybind11::handle tensor, const pybind11::object& to_dlpack, const pybind11::object& plain,
           std::uint64_t most_bytes);
  std::string head_;
  std::vector<std::int64_t> dims_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<pybind11::object> keep_;  // capsules, each of which keeps its tensor
};

// A received message, as a dict of tensors that keep its memory.
//   from_dlpack(capsule) -> tensor;  as_dtype(tensor, name) -> the tensor as a dtype that DLPack has no name for
// Throws std::invalid_argument if the bytes are no message. A peer may overwrite them meanwhile, so the head is copied before
// it is read.
pybind11::dict message_of(const shm::Received& received, const pybind11::object& from_dlpack, const pybind11::object& as_dtype);

}  // namespace datapipes
