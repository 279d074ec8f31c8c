#include "tfrecord/usual_example.h"

#include <algorithm>

#include "common/load.h"

namespace datapipes::tfrecord {
namespace {

constexpr std::uint8_t kFirstField = 0x0a, kSecondField = 0x12;  // tags of fields 1 and 2 with a length

// Moves past `tag` and the length behind it; false unless both are there, followed by `length` bytes.
bool enter(const std::uint8_t*& at, const std::uint8_t* end, std::uint8_t tag, std::size_t& length) {
  if (end - at < 2 || at[0] != tag) return false;
  length = at[1];
  at += 2;
  if (length >= 0x80) {
    length &= 0x7f;
    for (int shift = 7;; shift += 7) {
      if (at == end || shift > 21) return false;
      const std::uint8_t byte = *at++;
      length |= std::size_t{byte & 0x7fU} << shift;
      if (byte < 0x80) break;
    }
  }
  return length <= static_cast<std::size_t>(end - at);
}

// The same for a field that fills the rest.
bool enter_last(const std::uint8_t*& at, const std::uint8_t* end, std::uint8_t tag) {
  std::size_t length;
  return enter(at, end, tag, length) && length == static_cast<std::size_t>(end - at);
}

bool same(const std::uint8_t* one, const std::uint8_t* other, std::size_t bytes) {
  if (bytes < 8) {
    for (std::size_t i = 0; i < bytes; ++i)
      if (one[i] != other[i]) return false;
    return true;
  }
  for (std::size_t i = 0; i + 8 < bytes; i += 8)
    if (load<std::uint64_t>(one + i) != load<std::uint64_t>(other + i)) return false;
  return load<std::uint64_t>(one + bytes - 8) == load<std::uint64_t>(other + bytes - 8);
}

}  // namespace

UsualExample::UsualExample(const Columns& columns, std::span<const Target> targets, std::span<const Store> stores,
                           const std::uint8_t* readable)
    : columns_(columns),
      targets_(targets),
      stores_(stores),
      readable_(readable),
      guesses_(2 * columns.num_keys() + 30),
      seen_in_(columns.num_keys()) {}

int UsualExample::number_of(Bytes key, std::size_t place) {
  if (place >= guesses_.size()) return columns_.number_of(key);
  Guess& guess = guesses_[place];
  if (guess.key == nullptr || guess.bytes != key.size() || !same(guess.key, key.data(), key.size())) {
    guess = {key.data(), key.size(), columns_.number_of(key)};
  }
  return guess.number;
}

bool UsualExample::read(Bytes data, std::int64_t row) {
  const std::uint8_t *at = data.data(), *const end = at + data.size();
  if (!enter_last(at, end, kFirstField)) return false;
  ++record_;
  std::size_t keys = 0;
  for (std::size_t place = 0; at < end; ++place) {
    std::size_t length;
    if (!enter(at, end, kFirstField, length)) return false;
    const std::uint8_t* const entry_end = at + length;
    if (!enter(at, entry_end, kFirstField, length)) return false;
    const Bytes key(at, length);
    at += length;
    if (!enter_last(at, entry_end, kSecondField)) return false;
    const int number = number_of(key, place);
    if (number != Columns::kUnknown) {
      std::uint64_t& seen = seen_in_[static_cast<std::size_t>(number)];
      if (seen == record_) return false;
      seen = record_;
      ++keys;
      for (int i = columns_.first(number); i >= 0; i = columns_.next(i))
        if (!read_column(static_cast<std::size_t>(i), at, entry_end, row)) return false;
    }
    at = entry_end;
  }
  return keys == columns_.num_keys() || use_defaults(row);
}

bool UsualExample::read_column(std::size_t column, const std::uint8_t* at, const std::uint8_t* end, std::int64_t row) {
  const Store& store = stores_[column];
  const auto width = static_cast<std::size_t>(columns_[column].width);
  std::byte* const to = targets_[column].row(row);
  const auto tag = static_cast<std::uint8_t>(static_cast<unsigned>(columns_[column].kind) << 3 | 2);
  if (!enter_last(at, end, tag) || !enter_last(at, end, kFirstField)) return false;
  if (store.ints != nullptr) return store.ints(at, end, readable_, width, to);
  return static_cast<std::size_t>(end - at) == width * 4 && store.floats(at, width, to);
}

bool UsualExample::use_defaults(std::int64_t row) {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (seen_in_[static_cast<std::size_t>(columns_.key_of(i))] == record_) continue;
    if (!columns_[i].has_default || !put_default(columns_[i], stores_[i], targets_[i].row(row))) return false;
  }
  return true;
}

}  // namespace datapipes::tfrecord
