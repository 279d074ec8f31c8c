// framing.h: a file of TFRecords is a sequence of records: uint64 length, uint32 CRC of the length, data, uint32 CRC of the
// data; all little-endian, both CRCs masked. Any bytes may come in; a fault is reported as a Problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "tfrecord/crc32c.h"

namespace datapipes::tfrecord {

// A fault of a record. The text names no file and no record; the caller adds these.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kHeaderBytes = 12, kFramingBytes = 16;

// Returns the bytes of the first record in `data`, framing included; 0 if its header is not whole. Throws a Problem if the CRC
// of the length is wrong.
std::uint64_t record_length(Bytes data);

// Returns the content of the first record in `data`, which is whole; `length` is the result of record_length.
inline Bytes data_of(Bytes data, std::uint64_t length) { return data.subspan(kHeaderBytes, length - kFramingBytes); }

// Throws a Problem unless the CRC of the data of a whole record is right.
void check_data_crc(Bytes data, std::uint64_t length);

// The number of whole records at the beginning of some bytes, their bytes, and the fault of the next record; "" if none.
struct Extent {
  std::int64_t records = 0;
  std::int64_t bytes = 0;
  std::string problem;
};

// Calls use(record, number) for each whole record, framing included, until `use` or a header throws a Problem.
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

// Counts the whole records. Checks the CRC of each length, and with check_data the CRC of the data.
Extent scan_records(Bytes data, bool check_data);

}  // namespace datapipes::tfrecord
