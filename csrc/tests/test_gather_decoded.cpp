// test_gather_decoded.cpp: rows stored with fewer bits, for the sanitizers: both paths over every bit pattern, widths
// and spacings, threads, ids outside. tests/base/test_gather_decoded.py compares the bits with the twin.
#include "gather/gather_decoded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace datapipes {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Stored kStored[] = {Stored::kFloat16, Stored::kBfloat16, Stored::kInt8};

float value_at(const Bytes& values, std::int64_t i) {
  float value;
  std::memcpy(&value, values.data() + 4 * i, sizeof value);
  return value;
}

// Vectors of the exact size, so that AddressSanitizer catches a read or store past either end.
Bytes decoded_by(DecodeRow decode, const Bytes& stored, std::int64_t width, const std::vector<float>& scale) {
  Bytes values(static_cast<std::size_t>(4 * width));
  decode(values.data(), stored.data(), width, scale.data());
  return values;
}

std::vector<float> scale_of(Stored stored, std::int64_t width) {
  std::vector<float> scale(stored == Stored::kInt8 ? static_cast<std::size_t>(width) : 0);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<float>(i % 7) * 0x1.99999ap-4f;
  return scale;
}

void both_paths_give_the_bits_of_every_pattern() {
  for (const Stored stored : kStored) {
    constexpr std::int64_t kPatterns = 1 << 16;
    Bytes table(static_cast<std::size_t>(kPatterns * stored_bytes(stored)));
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::size_t byte = stored_bytes(stored) == 1 ? i : i % 2 == 0 ? i / 2 : i / 2 >> 8;
      table[i] = static_cast<std::byte>(byte);
    }
    const auto scale = scale_of(stored, kPatterns);
    CHECK(decoded_by(decoder(stored), table, kPatterns, scale) == decoded_by(plain_decoder(stored), table, kPatterns, scale));
  }
}

void known_values_are_decoded() {
  const auto halves = [](Stored stored, std::vector<std::uint16_t> bits) {
    Bytes table(2 * bits.size());
    std::memcpy(table.data(), bits.data(), table.size());
    return decoded_by(plain_decoder(stored), table, std::ssize(bits), {});
  };
  const Bytes of_float16 = halves(Stored::kFloat16, {0x3c00, 0xc000, 0x0001, 0x03ff, 0x7bff, 0xfc00, 0x7e00});
  const float expected[] = {1.0f, -2.0f, 0x1p-24f, 1023 * 0x1p-24f, 65504.0f, -std::numeric_limits<float>::infinity()};
  for (std::int64_t i = 0; i < std::ssize(expected); ++i) CHECK(value_at(of_float16, i) == expected[i]);
  CHECK(std::isnan(value_at(of_float16, 6)));
  const Bytes of_bfloat16 = halves(Stored::kBfloat16, {0x3f80, 0xc049, 0x0001});
  CHECK(value_at(of_bfloat16, 0) == 1.0f && value_at(of_bfloat16, 1) == -3.140625f && value_at(of_bfloat16, 2) == 0x1p-133f);
  const Bytes of_int8 = decoded_by(plain_decoder(Stored::kInt8), {std::byte{0x81}, std::byte{5}}, 2, {0.5f, 0.0f});
  CHECK(value_at(of_int8, 0) == -63.5f && value_at(of_int8, 1) == 0.0f);
}

template <class Id>
void stored_rows_are_gathered_at_every_width() {
  for (const Stored stored : kStored) {
    for (const std::int64_t width : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 100, 1024}) {
      for (const std::int64_t gap : {0, 5}) {
        constexpr std::int64_t kRows = 37;
        const std::int64_t row_bytes = width * stored_bytes(stored), stride = row_bytes + gap;
        Bytes table(static_cast<std::size_t>(kRows * stride - gap));
        for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 37 + i / 251);
        const auto scale = scale_of(stored, width);
        std::vector<Id> ids;
        for (std::int64_t i = 0; i < 101; ++i) ids.push_back(static_cast<Id>(i * i % kRows));
        ids.push_back(kRows - 1);
        Bytes out(static_cast<std::size_t>(std::ssize(ids) * 4 * width)), row(static_cast<std::size_t>(4 * width));
        const RowTable rows{table.data(), kRows, row_bytes, stride};
        gather_decoded<Id>(rows, stored, scale.data(), ids, out.data());
        for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
          plain_decoder(stored)(row.data(), table.data() + ids[static_cast<std::size_t>(i)] * stride, width, scale.data());
          CHECK(std::equal(row.begin(), row.end(), out.begin() + i * 4 * width));
        }
        gather_decoded<Id>(rows, stored, scale.data(), {}, out.data());
        for (const Id outside : {Id{-1}, Id{kRows}, std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()}) {
          ids.back() = outside;
          CHECK_THROWS(std::out_of_range, (gather_decoded<Id>(rows, stored, scale.data(), ids, out.data()), 0));
        }
      }
    }
  }
}

// Enough rows for several turns, and for stores past the cache.
void many_rows_are_the_same_on_any_number_of_threads() {
  for (const Stored stored : kStored) {
    constexpr std::int64_t kRows = 64, kWidth = 1'028;
    Bytes table(static_cast<std::size_t>(kRows * kWidth * stored_bytes(stored)));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 41 + i / 257);
    const auto scale = scale_of(stored, kWidth);
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 2'200; ++i) ids.push_back(i * 31 % kRows);
    const RowTable rows{table.data(), kRows, kWidth * stored_bytes(stored), kWidth * stored_bytes(stored)};
    const auto gathered = [&](int threads) {
      Bytes memory(ids.size() * 4 * kWidth + 16);
      const auto odd = reinterpret_cast<std::uintptr_t>(memory.data()) % 16;
      std::byte* const out = memory.data() + (16 - odd) % 16;
      gather_decoded<std::int64_t>(rows, stored, scale.data(), ids, out, threads);
      return Bytes(out, out + ids.size() * 4 * kWidth);
    };
    const Bytes alone = gathered(1);
    CHECK(gathered(3) == alone);
    Bytes row(static_cast<std::size_t>(4 * kWidth));
    plain_decoder(stored)(row.data(), table.data() + ids[2'199] * rows.row_stride, kWidth, scale.data());
    CHECK(std::equal(row.begin(), row.end(), alone.end() - 4 * kWidth));
  }
}

}  // namespace

SUITE(test_gather_decoded) {
  RUN(both_paths_give_the_bits_of_every_pattern);
  RUN(known_values_are_decoded);
  RUN_FOR_BOTH_IDS(stored_rows_are_gathered_at_every_width);
  RUN(many_rows_are_the_same_on_any_number_of_threads);
}

}  // namespace datapipes
