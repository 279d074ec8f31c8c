// usual_example.h: reads a tf.train.Example in the form that writers usually produce, several times as fast as AnyExample: one
// list of features; in each entry the key, then one packed list; lengths in few bytes; no key twice. It recognises keys by
// their place, since writers keep an order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tfrecord/columns.h"
#include "tfrecord/packed.h"

namespace datapipes::tfrecord {

// Reads one record after the other; an object for each thread and each piece of memory with records.
class UsualExample {
 public:
  // `readable`: the end of the memory, behind all records; the memory must live as long as this object.
  UsualExample(const Columns& columns, std::span<const Target> targets, std::span<const Store> stores,
               const std::uint8_t* readable);

  // Writes the columns of a record into a row of the targets, and returns true. Returns false if the record has another form
  // or is wrong; the row is then undefined. AnyExample reads the same values from every record that this accepts.
  bool read(Bytes data, std::int64_t row);

 private:
  struct Guess {
    const std::uint8_t* key = nullptr;
    std::size_t bytes = 0;
    int number = Columns::kUnknown;
  };
  int number_of(Bytes key, std::size_t place);
  bool read_column(std::size_t column, const std::uint8_t* at, const std::uint8_t* end, std::int64_t row);
  bool use_defaults(std::int64_t row);

  const Columns& columns_;
  std::span<const Target> targets_;
  std::span<const Store> stores_;
  const std::uint8_t* readable_;
  std::vector<Guess> guesses_;          // by place in the record: the last key seen there
  std::vector<std::uint64_t> seen_in_;  // by number of the key: the last record with it
  std::uint64_t record_ = 0;
};

}  // namespace datapipes::tfrecord
