// framing.h: a file of TFRecords is a row of records: uint64 length, uint32 CRC of the length, data, uint32 CRC of the
// data; all little-endian, both CRCs masked. Any bytes may come in; what is wrong comes out as a Problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tfrecord/crc32c.h"

namespace datapipes::tfrecord {

// What is wrong with a record. The text names no file and no record: the caller does.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kHeaderBytes = 12, kFramingBytes = 16;

// Returns the bytes of the record that begins `data`, framing included; 0 where its header is not whole. Throws a Problem
// if the CRC of the length is wrong.
std::uint64_t record_length(Bytes data);

// Returns the data of the record that begins `data`; `length` is that of record_length, and so many bytes are there.
inline Bytes data_of(Bytes data, std::uint64_t length) { return data.subspan(kHeaderBytes, length - kFramingBytes); }

// Throws a Problem unless the CRC behind the data of a whole record is the data's.
void check_data_crc(Bytes data, std::uint64_t length);

// Whole records from the beginning of some bytes, the bytes they take, and what is wrong with the next; "" if nothing is.
struct Extent {
  std::int64_t records = 0;
  std::int64_t bytes = 0;
  std::string problem;
};

// Calls use(record, number) for each whole record, framing included, until it or its header is a Problem.
template <class Use>
Extent each_record(Bytes data, Use&& use) {
  Extent extent;
  try {
    for (;;) {
      const std::uint64_t length = record_length(data);
      if (length == 0 || length > data.size()) return extent;
      use(data.first(length), extent.records);
      ++extent.records;
      extent.bytes += static_cast<std::int64_t>(length);
      data = data.subspan(length);
    }
  } catch (const Problem& problem) {
    extent.problem = problem.what();
  }
  return extent;
}

// Counts the whole records. The CRC of each length is checked, that of the data if asked.
Extent scan_records(Bytes data, bool check_data);

}  // namespace datapipes::tfrecord
