// columns.h: the columns to read from each tf.train.Example, and their targets in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tfrecord/framing.h"

namespace datapipes::tfrecord {

enum class Kind : std::uint8_t { kNone = 0, kBytes = 1, kFloat32 = 2, kInt64 = 3 };  // field numbers in a Feature

// One key of every record: `width` values of one kind. If the key is absent, the default counts, if present: `width` values in
// the vector of the kind.
struct Column {
  std::string key;
  Kind kind;
  std::int64_t width;
  bool has_default = false;
  std::vector<float> default_floats = {};
  std::vector<std::int64_t> default_ints = {};
};

// The dtype of a target: a float column allows the first three, an int column all.
enum class DType : std::uint8_t {
  kFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64
};

// Writable memory of one column: rows at any distance, the values of a row adjacent, any alignment.
struct Target {
  std::byte* data;
  std::int64_t num_rows;
  std::int64_t row_stride;  // bytes
  DType dtype;
  std::byte* row(std::int64_t number) const { return data + number * row_stride; }
};

// The columns by key. Several columns may read one key.
class Columns {
 public:
  // Throws std::invalid_argument if there are none, a width is below 1, or a default has another number of values.
  explicit Columns(std::vector<Column> columns);
  Columns(const Columns&) = delete;  // keys_ views the keys of columns_
  Columns& operator=(const Columns&) = delete;

  std::size_t size() const { return columns_.size(); }
  const Column& operator[](std::size_t i) const { return columns_[i]; }

  static constexpr int kUnknown = -1;
  std::size_t num_keys() const { return first_.size(); }
  // Returns the number of a key in [0, num_keys()); kUnknown if no column names the key.
  int number_of(Bytes key) const;
  int key_of(std::size_t column) const { return key_of_[column]; }
  // The columns of a key: `for (int i = first(key); i >= 0; i = next(i))`.
  int first(int key) const { return first_[static_cast<std::size_t>(key)]; }
  int next(int column) const { return next_[static_cast<std::size_t>(column)]; }

 private:
  std::vector<Column> columns_;
  std::unordered_map<std::string_view, int> keys_;
  std::vector<int> key_of_, first_, next_;
};

}  // namespace datapipes::tfrecord
