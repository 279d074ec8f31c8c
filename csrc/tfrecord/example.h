// example.h: columns of tf.train.Example records, straight from the bytes of a file into the rows of targets.
//   Any bytes may come in: nothing outside them is read, nothing outside the rows is written, and memory depends on the columns
//   alone. Both CRCs of every record are checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tfrecord/columns.h"
#include "tfrecord/framing.h"

namespace datapipes::tfrecord {

// Immutable, so many threads may use one at once.
class ExampleParser {
 public:
  // Throws std::invalid_argument if there are no columns, or a column is not allowed.
  explicit ExampleParser(std::vector<Column> columns) : columns_(std::move(columns)) {}

  const Columns& columns() const { return columns_; }

  // Reads the whole records in `data` into rows first_row, first_row + 1 ... of the targets, one for each column. Stops before
  // a record that is not whole, and at the first problem; the row of the record with the problem is undefined.
  // Throws std::invalid_argument if the targets do not fit the columns.
  Extent parse(Bytes data, std::span<const Target> targets, std::int64_t first_row) const;

 private:
  Columns columns_;
};

}  // namespace datapipes::tfrecord
