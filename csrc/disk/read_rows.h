// read_rows.h: copies chosen rows of a file; the counterpart of gather_rows for rows on a disk.
//   file: rows of `row_bytes` bytes from byte `begin` on; ids Id[num_ids], repeats allowed; out: num_ids rows of row_bytes
//   bytes without gaps.
// Rows are read in the order of the file; rows whose blocks touch are read at once, up to kMostRead bytes. `depth` threads
// read, each one read at a time. `bytes_read` also counts bytes between and around the rows. With `direct` the descriptor
// was opened with O_DIRECT: reads begin and end at multiples of `block` in the file and in memory. Throws std::out_of_range
// (IndexError) on an id outside [0, num_rows), before anything is read; std::system_error on a failed read; ShortFile
// (ValueError) if the file ends before a row does. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace datapipes {

inline constexpr std::int64_t kMostRead = std::int64_t{1} << 20;

struct RowFile {
  int descriptor;
  std::int64_t begin;
  std::int64_t num_rows;
  std::int64_t row_bytes;
  std::int64_t block;  // of a read; a power of 2
  bool direct;
};

struct ReadCounts {
  std::int64_t reads = 0;
  std::int64_t bytes_read = 0;
};

class ShortFile : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <class Id>
ReadCounts read_rows(const RowFile& file, std::span<const Id> ids, std::byte* out, int depth);

}  // namespace datapipes
