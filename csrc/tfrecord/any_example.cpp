#include "tfrecord/any_example.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "common/load.h"

namespace datapipes::tfrecord {
namespace {

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"no", "bytes", "float32", "int64"};
  return kNames[static_cast<int>(kind)];
}

// Returns a key for an error: at most 40 bytes, control characters escaped. It need not be UTF-8.
std::string shown(Bytes key) {
  constexpr std::size_t kMost = 40;
  std::string text = "'";
  for (const std::uint8_t byte : key.first(std::min(key.size(), kMost))) {
    char escaped[5];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
    if (byte < 0x20 || byte == 0x7f) {
      text += escaped;
    } else {
      text += static_cast<char>(byte);
    }
  }
  return text + (key.size() > kMost ? "'..." : "'");
}

std::string shown(const std::string& key) { return shown(Bytes(reinterpret_cast<const std::uint8_t*>(key.data()), key.size())); }

[[noreturn]] void wrong_value(const Column& column, const Target& target, float value) {
  char number[32];
  std::snprintf(number, sizeof number, "%.9g", static_cast<double>(value));
  throw Problem("key " + shown(column.key) + ": the float32 " + number + " becomes infinite as " + name_of(target.dtype));
}

[[noreturn]] void wrong_value(const Column& column, const Target& target, std::int64_t value) {
  throw Problem("key " + shown(column.key) + ": the int64 " + std::to_string(value) + " does not fit into " +
                name_of(target.dtype));
}

// Calls use(key, entry) for each entry of the map.
template <class Use>
void for_each_entry(Bytes data, Use&& use) {
  WireReader example(data);
  while (!example.done()) {
    const Tag of_example = example.tag();
    if (!of_example.is(1, Wire::kBytes)) {
      example.skip(of_example.wire);
      continue;
    }
    WireReader features = example.inner();
    while (!features.done()) {
      const Tag of_features = features.tag();
      if (!of_features.is(1, Wire::kBytes)) {
        features.skip(of_features.wire);
        continue;
      }
      WireReader entry = features.inner();
      const WireReader whole = entry;
      Bytes key;
      while (!entry.done()) {
        const Tag of_entry = entry.tag();
        if (of_entry.is(1, Wire::kBytes)) {
          key = entry.inner().rest();
        } else {
          entry.skip(of_entry.wire);
        }
      }
      use(key, whole);
    }
  }
}

std::string keys_of(Bytes data) {
  constexpr int kMost = 8;
  std::string text;
  int count = 0;
  for_each_entry(data, [&](Bytes key, const WireReader&) {
    if (++count <= kMost) text += (count > 1 ? ", " : "") + shown(key);
  });
  if (count > kMost) text += " and " + std::to_string(count - kMost) + " more";
  return count == 0 ? "none" : text;
}

// Collects the values of one column from all lists of its Feature.
class Values {
 public:
  Values(const Column& column, const Target& target, const Store& store, std::byte* to)
      : column_(column), target_(target), store_(store), to_(to) {}

  void add_feature(WireReader feature) {
    while (!feature.done()) {
      const Tag tag = feature.tag();
      if (tag.number > 3 || tag.wire != Wire::kBytes) {
        feature.skip(tag.wire);
        continue;
      }
      const auto kind = static_cast<Kind>(tag.number);
      if (kind != kind_) count_ = 0, lost_ = false;
      kind_ = kind;
      WireReader list = feature.inner();
      if (kind != column_.kind) continue;
      if (kind == Kind::kFloat32) {
        add_floats(list);
      } else {
        add_ints(list);
      }
    }
  }

  void add_default() {
    kind_ = column_.kind;
    for (const float value : column_.default_floats) add(value);
    for (const std::int64_t value : column_.default_ints) add(value);
  }

  Kind kind() const { return kind_; }

  void check() const {
    if (kind_ != column_.kind) {
      throw Problem("key " + shown(column_.key) + " has " + name_of(kind_) + " values, must have " + name_of(column_.kind));
    }
    if (count_ != static_cast<std::uint64_t>(column_.width)) {
      throw Problem("key " + shown(column_.key) + " has " + std::to_string(count_) + " values, must have " +
                    std::to_string(column_.width));
    }
    if (lost_ && kind_ == Kind::kFloat32) wrong_value(column_, target_, lost_float_);
    if (lost_) wrong_value(column_, target_, lost_int_);
  }

 private:
  void add_floats(WireReader list) {
    while (!list.done()) {
      const Tag tag = list.tag();
      if (tag.is(1, Wire::kFixed32)) {
        add(load<float>(list.take(4)));
      } else if (tag.is(1, Wire::kBytes)) {
        const std::uint8_t* const first = list.at();
        WireReader packed = list.inner();
        if (packed.left() % 4 != 0) list.fail("a list of floats of " + std::to_string(packed.left()) + " bytes", first);
        while (!packed.done()) add(load<float>(packed.take(4)));
      } else {
        list.skip(tag.wire);
      }
    }
  }

  void add_ints(WireReader list) {
    while (!list.done()) {
      const Tag tag = list.tag();
      if (tag.is(1, Wire::kVarint)) {
        add(static_cast<std::int64_t>(list.varint()));
      } else if (tag.is(1, Wire::kBytes)) {
        WireReader packed = list.inner();
        while (!packed.done()) add(static_cast<std::int64_t>(packed.varint()));
      } else {
        list.skip(tag.wire);
      }
    }
  }

  void add(float value) {
    if (fits() && !store_.float_value(value, place()) && !lost_) lost_ = true, lost_float_ = value;
    ++count_;
  }
  void add(std::int64_t value) {
    if (fits() && !store_.int_value(value, place()) && !lost_) lost_ = true, lost_int_ = value;
    ++count_;
  }
  bool fits() const { return count_ < static_cast<std::uint64_t>(column_.width); }
  std::byte* place() const { return to_ + count_ * store_.entry_bytes; }

  const Column& column_;
  const Target& target_;
  const Store& store_;
  std::byte* to_;
  Kind kind_ = Kind::kNone;
  std::uint64_t count_ = 0;
  bool lost_ = false;
  float lost_float_ = 0;
  std::int64_t lost_int_ = 0;
};

}  // namespace

void AnyExample::read(Bytes data, std::int64_t row) {
  find_entries(data);
  for (std::size_t i = 0; i < columns_.size(); ++i) read_column(data, i, row);
}

void AnyExample::find_entries(Bytes data) {
  std::fill(entries_.begin(), entries_.end(), std::nullopt);
  for_each_entry(data, [&](Bytes key, const WireReader& entry) {
    const int number = columns_.number_of(key);
    if (number != Columns::kUnknown) entries_[static_cast<std::size_t>(number)] = entry;
  });
}

void AnyExample::read_column(Bytes data, std::size_t number, std::int64_t row) {
  const Column& column = columns_[number];
  const auto& found = entries_[static_cast<std::size_t>(columns_.key_of(number))];
  Values values(column, targets_[number], stores_[number], targets_[number].row(row));
  if (found) {
    WireReader entry = *found;
    while (!entry.done()) {
      const Tag tag = entry.tag();
      if (tag.is(2, Wire::kBytes)) {
        values.add_feature(entry.inner());
      } else {
        entry.skip(tag.wire);
      }
    }
  }
  if (values.kind() == Kind::kNone) {
    if (!column.has_default && found) throw Problem("key " + shown(column.key) + " has no values");
    if (!column.has_default) throw Problem("key " + shown(column.key) + " is missing; its keys are " + keys_of(data));
    values.add_default();
  }
  values.check();
}

}  // namespace datapipes::tfrecord
