#include "tables/id_numbers.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace datapipes {
namespace {

constexpr std::uint64_t kNumber = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t kOdd[] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb};
constexpr std::size_t kLarge = std::size_t{1} << 24;  // slots; smaller tables grow fourfold, and so move ids less often
constexpr int kGroup = 64;                            // ids whose lines of memory are fetched at once

struct Secrets {
  std::uint64_t first, second;
};

std::uint64_t folded(std::uint64_t one, std::uint64_t other) {
  const auto product = static_cast<unsigned __int128>(one) * other;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

template <class Word>
std::uint64_t word_at(const char* place) {
  Word word;
  std::memcpy(&word, place, sizeof word);
  return word;
}

// Both factors have a secret, so that no text makes one of them 0.
std::uint64_t hash_of(std::string_view text, Secrets secrets) {
  const char* place = text.data();
  std::size_t left = text.size();
  std::uint64_t hash = secrets.first, first = 0, last = 0;
  for (; left > 16; place += 16, left -= 16)
    hash = folded(word_at<std::uint64_t>(place) ^ secrets.second, word_at<std::uint64_t>(place + 8) ^ hash);
  if (left >= 8) {
    first = word_at<std::uint64_t>(place);
    last = word_at<std::uint64_t>(place + left - 8);
  } else if (left >= 4) {
    first = word_at<std::uint32_t>(place);
    last = word_at<std::uint32_t>(place + left - 4);
  } else if (left > 0) {
    first = word_at<std::uint8_t>(place) | word_at<std::uint8_t>(place + left / 2) << 8;
    last = word_at<std::uint8_t>(place + left - 1);
  }
  return folded(folded(first ^ secrets.second ^ kOdd[1], last ^ hash), text.size() ^ kOdd[2]);
}

std::uint64_t hash_of(std::int64_t id, Secrets secrets) {
  return folded(folded(static_cast<std::uint64_t>(id) ^ secrets.first, secrets.second), kOdd[2]);
}

}  // namespace

// What differs between the kinds: how a column yields an id, and how an id that has a number is kept.
struct IdNumbers::Texts {
  using Id = std::string_view;
  static Id id_at(const IdColumn& column, std::size_t row) {
    const auto begin = static_cast<std::size_t>(column.offsets[row]), end = static_cast<std::size_t>(column.offsets[row + 1]);
    return {column.bytes.data() + begin, end - begin};
  }
  static Id kept(const IdNumbers& numbers, std::int64_t number) { return numbers.text(number); }
  static const void* first_place(const IdNumbers& numbers, std::size_t number) { return numbers.texts_.data() + number; }
  static const void* second_place(const IdNumbers& numbers, std::size_t number) {
    const Text& text = numbers.texts_[number];
    return text.size <= sizeof text.first ? nullptr : numbers.bytes_.data() + place_of(text);
  }
  static std::size_t place_of(const Text& text) { return word_at<std::uint64_t>(text.first + 4); }
  static void keep(IdNumbers& numbers, Id id) {
    if (id.size() > std::numeric_limits<std::uint32_t>::max()) throw std::bad_alloc();
    Text text{static_cast<std::uint32_t>(id.size()), {}};
    std::memcpy(text.first, id.data(), std::min(id.size(), sizeof text.first));
    if (id.size() > sizeof text.first) {
      const std::uint64_t place = numbers.bytes_.size();
      std::memcpy(text.first + 4, &place, sizeof place);
      numbers.bytes_.append(id.data(), id.size());
    }
    numbers.texts_.append(&text, 1);
  }
};

struct IdNumbers::Integers {
  using Id = std::int64_t;
  static Id id_at(const IdColumn& column, std::size_t row) { return column.integers[row]; }
  static Id kept(const IdNumbers& numbers, std::int64_t number) { return numbers.integer(number); }
  static const void* first_place(const IdNumbers& numbers, std::size_t number) { return numbers.integers_.data() + number; }
  static const void* second_place(const IdNumbers&, std::size_t) { return nullptr; }
  static void keep(IdNumbers& numbers, Id id) { numbers.integers_.append(&id, 1); }
};

IdNumbers::IdNumbers(Kind kind, std::uint64_t seed)
    : kind_(kind),
      first_secret_(folded(seed ^ kOdd[0], kOdd[1])),
      second_secret_(folded(seed ^ kOdd[1], kOdd[2]) | 1),
      slots_(1024) {}

std::string_view IdNumbers::text(std::int64_t number) const {
  const Text& text = texts_[static_cast<std::size_t>(number)];
  return {text.size <= sizeof text.first ? text.first : bytes_.data() + Texts::place_of(text), text.size};
}

void IdNumbers::number(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) {
  check(columns, rows, out);
  kind_ == Kind::kTexts ? run<Texts>(*this, columns, rows, out) : run<Integers>(*this, columns, rows, out);
}

void IdNumbers::find(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) const {
  check(columns, rows, out);
  kind_ == Kind::kTexts ? run<Texts>(*this, columns, rows, out) : run<Integers>(*this, columns, rows, out);
}

// An id waits for three lines of memory, one after another: its slot, the place of the id that has the slot, and the bytes
// of that id. So each pass over a group asks for the next line of all its ids.
template <class Keys, class Self>
void IdNumbers::run(Self& self, std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) {
  constexpr bool kAdds = !std::is_const_v<Self>;
  typename Keys::Id ids[kGroup];
  std::uint64_t hashes[kGroup];
  std::int64_t* places[kGroup];
  std::size_t row = 0, column = 0;
  const auto num_rows = static_cast<std::size_t>(rows);
  while (row < num_rows) {
    if constexpr (kAdds) self.reserve(kGroup);
    const std::size_t mask = self.slots_.size() - 1;
    int count = 0;
    for (; count < kGroup && row < num_rows; column + 1 < columns.size() ? void(++column) : void((column = 0, ++row))) {
      std::int64_t* const place = out.data() + column * num_rows + row;
      const IdColumn& from = columns[column];
      if (!from.valid.empty() && from.valid[row] == 0) {
        *place = -1;
        continue;
      }
      ids[count] = Keys::id_at(from, row);
      hashes[count] = hash_of(ids[count], {self.first_secret_, self.second_secret_});
      __builtin_prefetch(&self.slots_[hashes[count] & mask], kAdds);
      places[count++] = place;
    }
    const auto ask = [&](auto line) {
      for (int i = 0; i < count; ++i) {
        const std::uint64_t slot = self.slots_[hashes[i] & mask];
        if (slot != 0 && ((slot ^ hashes[i]) & ~kNumber) == 0) __builtin_prefetch(line(self, (slot & kNumber) - 1));
      }
    };
    ask(Keys::first_place);
    if constexpr (std::is_same_v<Keys, Texts>) ask(Keys::second_place);
    for (int i = 0; i < count; ++i) {
      for (std::size_t place = hashes[i] & mask;; place = (place + 1) & mask) {
        const std::uint64_t slot = self.slots_[place];
        const auto number = static_cast<std::int64_t>(slot & kNumber) - 1;
        if (slot == 0) {
          *places[i] = -1;
          if constexpr (kAdds) {
            Keys::keep(self, ids[i]);
            *places[i] = self.count_++;
            self.slots_[place] = (hashes[i] & ~kNumber) | static_cast<std::uint64_t>(self.count_);
          }
          break;
        }
        if (((slot ^ hashes[i]) & ~kNumber) == 0 && Keys::kept(self, number) == ids[i]) {
          *places[i] = number;
          break;
        }
      }
    }
  }
}

// The table is at most three quarters full.
void IdNumbers::reserve(std::int64_t more) {
  const auto wanted = static_cast<std::size_t>(count_ + more);
  if (wanted * 4 <= slots_.size() * 3) return;
  if (wanted > kNumber) throw std::bad_alloc();
  std::size_t size = slots_.size() * (slots_.size() < kLarge ? 4 : 2);
  while (wanted * 4 > size * 3) size *= 2;
  decltype(slots_) larger(size);
  slots_.swap(larger);
  larger = {};
  kind_ == Kind::kTexts ? enter_all<Texts>() : enter_all<Integers>();
}

template <class Keys>
void IdNumbers::enter_all() {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t hashes[kGroup];
  for (std::int64_t begin = 0; begin < count_; begin += kGroup) {
    const std::int64_t end = std::min<std::int64_t>(begin + kGroup, count_);
    for (std::int64_t number = begin; number < end; ++number) {
      const std::uint64_t hash = hashes[number - begin] = hash_of(Keys::kept(*this, number), {first_secret_, second_secret_});
      __builtin_prefetch(&slots_[hash & mask], 1);
    }
    for (std::int64_t number = begin; number < end; ++number) {
      const std::uint64_t hash = hashes[number - begin];
      std::size_t place = hash & mask;
      while (slots_[place] != 0) place = (place + 1) & mask;
      slots_[place] = (hash & ~kNumber) | static_cast<std::uint64_t>(number + 1);
    }
  }
}

void IdNumbers::check(std::span<const IdColumn> columns, std::int64_t rows, std::span<std::int64_t> out) const {
  if (columns.empty() || rows < 0 || out.size() != columns.size() * static_cast<std::size_t>(rows))
    throw std::invalid_argument("id_numbers: out must have a place for each id of one column or more.");
  for (const IdColumn& column : columns) {
    const auto num_rows = static_cast<std::size_t>(rows);
    const bool has_texts = kind_ == Kind::kTexts;
    if ((has_texts ? column.offsets.size() != num_rows + 1 : column.integers.size() != num_rows) ||
        (!column.valid.empty() && column.valid.size() != num_rows))
      throw std::invalid_argument("id_numbers: all columns must have the same kind and number of ids.");
    if (!has_texts) continue;
    if (!std::is_sorted(column.offsets.begin(), column.offsets.end()) || column.offsets[0] < 0 ||
        column.offsets[num_rows] > std::ssize(column.bytes))
      throw std::invalid_argument("id_numbers: offsets must ascend, within the bytes.");
  }
}

}  // namespace datapipes
