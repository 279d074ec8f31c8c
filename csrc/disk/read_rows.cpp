#include "disk/read_rows.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

struct Wanted {
  std::int64_t row, place;  // in the file, in out
};

// One read: bytes [begin, end) of the file, for wanted rows [first, last).
struct Read {
  std::int64_t begin, end;
  std::size_t first, last;
};

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory aligned(std::int64_t bytes, std::int64_t block) {
  const auto alignment = static_cast<std::size_t>(std::max<std::int64_t>(block, 64));
  const auto size = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment * alignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(memory);
}

template <class Id>
std::vector<Wanted> in_file_order(const RowFile& file, std::span<const Id> ids) {
  std::vector<Wanted> wanted(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = read_once(ids[i]);
    if (!is_inside(id, file.num_rows)) {
      throw std::out_of_range("read_rows: ids must be in [0, " + std::to_string(file.num_rows) + "), got " + std::to_string(id) +
                              ". Check the ids against the number of rows of the feature.");
    }
    wanted[i] = {id, static_cast<std::int64_t>(i)};
  }
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& one, const Wanted& other) { return one.row < other.row; });
  return wanted;
}

std::vector<Read> joined(const RowFile& file, std::span<const Wanted> wanted) {
  std::vector<Read> reads;
  const std::int64_t mask = file.block - 1;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::int64_t at = file.begin + wanted[i].row * file.row_bytes;
    const std::int64_t begin = at & ~mask, end = (at + file.row_bytes + mask) & ~mask;
    const bool joins =
        !reads.empty() && begin <= reads.back().end && end - reads.back().begin <= std::max(kMostRead, end - begin);
    if (joins) {
      reads.back().end = std::max(reads.back().end, end);
      reads.back().last = i + 1;
    } else {
      reads.push_back({begin, end, i, i + 1});
    }
  }
  return reads;
}

// Copies the rows of a read to their places, from `bytes` bytes that were read.
void hand_out(const RowFile& file, const Read& read, std::span<const Wanted> wanted, const std::byte* memory, std::int64_t bytes,
              std::byte* out) {
  for (std::size_t i = read.first; i < read.last; ++i) {
    const std::int64_t at = file.begin + wanted[i].row * file.row_bytes - read.begin;
    if (at + file.row_bytes > bytes) {
      throw ShortFile("read_rows: the file ends before row " + std::to_string(wanted[i].row) + " does, and had " +
                      std::to_string(file.num_rows) + " rows when it was opened. Something has changed it; write it again.");
    }
    std::memcpy(out + wanted[i].place * file.row_bytes, memory + at, static_cast<std::size_t>(file.row_bytes));
  }
}

// Reads until all bytes are there, or the file ends; returns how many there are.
std::int64_t read_whole(const RowFile& file, const Read& read, std::byte* memory) {
  const std::int64_t wanted = read.end - read.begin;
  std::int64_t done = 0;
  while (done < wanted) {
    const ssize_t count =
        ::pread(file.descriptor, memory + done, static_cast<std::size_t>(wanted - done), static_cast<off_t>(read.begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "read_rows");
    if (count == 0) break;
    done += count;
    if (file.direct && done % file.block != 0) break;  // the end of the file
  }
  return done;
}

}  // namespace

template <class Id>
ReadCounts read_rows(const RowFile& file, std::span<const Id> ids, std::byte* out, int depth) {
  const auto wanted = in_file_order(file, ids);
  if (wanted.empty() || file.row_bytes == 0) return {};
  const auto reads = joined(file, wanted);
  ReadCounts counts{.reads = std::ssize(reads)};
  std::int64_t most = 0;
  for (const Read& read : reads) {
    counts.bytes_read += read.end - read.begin;
    most = std::max(most, read.end - read.begin);
  }
  in_turns(std::ssize(reads), std::max<std::int64_t>(1, std::ssize(reads) / (8 * depth)), depth,
           [&](std::int64_t begin, std::int64_t end) {
             const Memory memory = aligned(most, file.block);
             for (const Read& read :
                  std::span(reads).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))) {
               hand_out(file, read, wanted, memory.get(), read_whole(file, read, memory.get()), out);
             }
           });
  return counts;
}

template ReadCounts read_rows(const RowFile&, std::span<const std::int32_t>, std::byte*, int);
template ReadCounts read_rows(const RowFile&, std::span<const std::int64_t>, std::byte*, int);

}  // namespace datapipes
