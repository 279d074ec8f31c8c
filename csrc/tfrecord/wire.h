// wire.h: reads protobuf's wire format from untrusted bytes. Never reads outside them; throws a Problem that names the byte.
#pragma once

#include <cstdint>
#include <string>

#include "tfrecord/framing.h"

namespace datapipes::tfrecord {

enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Tag {
  std::uint32_t number;
  Wire wire;
  bool is(std::uint32_t wanted, Wire as) const { return number == wanted && wire == as; }
};

class WireReader {
 public:
  explicit WireReader(Bytes message) : begin_(message.data()), at_(begin_), end_(begin_ + message.size()) {}

  bool done() const { return at_ == end_; }
  Bytes rest() const { return {at_, end_}; }
  std::uint64_t left() const { return static_cast<std::uint64_t>(end_ - at_); }

  std::uint64_t varint() {
    const std::uint8_t* const first = at_;
    std::uint64_t number = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (done()) fail("a varint without an end", first);
      const std::uint8_t byte = *at_++;
      if (shift == 63 && byte >= 0x80) fail("a varint of more than 10 bytes", first);
      if (shift == 63 && byte > 1) fail("a varint of more than 64 bits", first);
      number |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) break;
    }
    return number;
  }

  Tag tag() {
    const std::uint8_t* const first = at_;
    const std::uint64_t tag = varint();
    if (tag > 0xffffffffU) fail("a tag of more than 32 bits", first);
    if (tag < 8) fail("a field of number 0", first);
    const auto wire = static_cast<unsigned>(tag & 7);
    if (wire == 3 || wire == 4) fail("a group", first);
    if (wire > 5) fail("wire type " + std::to_string(wire), first);
    return {static_cast<std::uint32_t>(tag >> 3), static_cast<Wire>(wire)};
  }

  // Returns a reader of the bytes of a field of wire type kBytes. Its problems count bytes from the start of the message.
  WireReader inner() {
    const std::uint8_t* const first = at_;
    const std::uint64_t length = varint();
    const std::uint8_t* const from = take(length, first);
    return {begin_, from, at_};
  }

  // Returns the address of the next bytes, and moves past them.
  const std::uint8_t* take(std::uint64_t count) { return take(count, at_); }

  void skip(Wire wire) {
    switch (wire) {
      case Wire::kVarint:
        varint();
        break;
      case Wire::kBytes:
        inner();
        break;
      case Wire::kFixed64:
        take(8);
        break;
      case Wire::kFixed32:
        take(4);
        break;
    }
  }

  const std::uint8_t* at() const { return at_; }
  [[noreturn]] void fail(const std::string& what, const std::uint8_t* at) const {
    throw Problem("no tf.train.Example: " + what + " at byte " + std::to_string(at - begin_) + " of its data");
  }

 private:
  WireReader(const std::uint8_t* begin, const std::uint8_t* at, const std::uint8_t* end) : begin_(begin), at_(at), end_(end) {}

  const std::uint8_t* take(std::uint64_t count, const std::uint8_t* first) {
    if (count > left()) {
      fail("a length of " + std::to_string(count) + " bytes, of which " + std::to_string(left()) + " are there,", first);
    }
    const std::uint8_t* const from = at_;
    at_ += count;
    return from;
  }

  const std::uint8_t* begin_;
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace datapipes::tfrecord
