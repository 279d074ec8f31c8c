// any_example.h: reads every tf.train.Example that protobuf would accept, in any encoding, and refuses all others.
// usual_example.h is a faster reader of the form that writers usually produce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tfrecord/columns.h"
#include "tfrecord/packed.h"
#include "tfrecord/wire.h"

namespace datapipes::tfrecord {

// Reads one record after the other; an object for each thread. Its memory depends on the columns alone.
class AnyExample {
 public:
  AnyExample(const Columns& columns, std::span<const Target> targets, std::span<const Store> stores)
      : columns_(columns), targets_(targets), stores_(stores), entries_(columns.num_keys()) {}

  // Writes the columns of a record into a row of the targets. Throws a Problem; the row is undefined then. Rules:
  //   Fields with an unknown number or another wire type are skipped; a group, or a field that ends too late, is refused.
  //   If a key has several entries, the last counts. Other entries, and keys of no column, are not parsed.
  //   The pieces of a Feature are merged: lists of one kind are joined, and a list of another kind replaces them.
  //   A Feature without a list counts as absent; an empty list has 0 values.
  void read(Bytes data, std::int64_t row);

 private:
  void find_entries(Bytes data);
  void read_column(Bytes data, std::size_t number, std::int64_t row);

  const Columns& columns_;
  std::span<const Target> targets_;
  std::span<const Store> stores_;
  std::vector<std::optional<WireReader>> entries_;  // by number of the key: the last entry that has it
};

}  // namespace datapipes::tfrecord
