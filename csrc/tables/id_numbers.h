// id_numbers.h: numbers ids, which are texts or integers, by first occurrence: 0, 1, 2 ...
//   IdNumbers(kind, seed): no ids yet. The seed of the hash changes no number; a secret one keeps hostile ids apart.
//   number(columns, rows, out): out[column * rows + row] becomes the number of each id, -1 for a row without an id. Ids are
//   taken row by row, in each row column by column.
//   find(columns, rows, out): the same, but ids without a number get none: -1.
//   text(number) and integer(number): the id, by its number. O(1) an id.
// Throws std::invalid_argument (ValueError) if columns do not fit: another kind, other lengths, offsets that descend or leave
// the bytes. Memory: an id takes 8 bytes (integers), or 16 and its text if that has more than 12 bytes; and 11 to 21 bytes
// of hash table. A text of up to 12 bytes is compared where its length lies, in one line of memory.
// Source: slots of a number and a part of the hash, as in SwissTable; the hash multiplies and folds, as wyhash does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "common/huge_pages.h"

namespace datapipes {

// The ids of some rows. Texts have `offsets` [rows + 1] into `bytes`, integers have `integers` [rows]. A row whose `valid`
// is 0 has no id; without `valid` all rows have one.
struct IdColumn {
  std::span<const std::int64_t> offsets;
  std::span<const char> bytes;
  std::span<const std::int64_t> integers;
  std::span<const std::uint8_t> valid;
};

// An array that grows at its end. realloc moves large blocks by the page table, without a copy beside the old one.
template <class T>
class GrowingArray {
 public:
  const T& operator[](std::size_t place) const { return data_.get()[place]; }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  void append(const T* values, std::size_t count) {
    if (size_ + count > room_) grow(size_ + count);
    if (count > 0) std::memcpy(data_.get() + size_, values, count * sizeof(T));
    size_ += count;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void grow(std::size_t wanted) {
    const std::size_t room = wanted + wanted / 2 + 64;
    void* const memory = std::realloc(data_.get(), room * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    (void)data_.release();  // realloc has freed it
    data_.reset(static_cast<T*>(memory));
    advise_huge_pages(memory, room * sizeof(T));
    room_ = room;
  }

  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0, room_ = 0;
};

class IdNumbers {
 public:
  enum class Kind { kTexts, kIntegers };

  IdNumbers(Kind kind, std::uint64_t seed);

  Kind kind() const { return kind_; }
  std::int64_t count() const { return count_; }
  void number(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out);
  void find(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) const;
  std::string_view text(std::int64_t number) const;
  std::int64_t integer(std::int64_t number) const { return integers_[static_cast<std::size_t>(number)]; }

 private:
  template <class Keys, class Self>
  static void run(Self& self, std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out);
  void reserve(std::int64_t more);
  template <class Keys>
  void enter_all();
  void check(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) const;

  struct Texts;
  struct Integers;

  Kind kind_;
  std::uint64_t first_secret_, second_secret_;  // of the hash
  std::int64_t count_ = 0;
  std::vector<std::uint64_t, HugePageAllocator<std::uint64_t>> slots_;  // 24 bits of the hash, 40 of number + 1; 0: free
  struct Text {
    std::uint32_t size;
    char first[12];  // the text if it fits, else its first 4 bytes and its place in bytes_
  };

  GrowingArray<Text> texts_;
  GrowingArray<std::int64_t> integers_;
  GrowingArray<char> bytes_;  // of long texts
};

}  // namespace datapipes
