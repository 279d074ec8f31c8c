#include "gather/decode.h"

#include <cstring>
#include <type_traits>

#include "common/avx2.h"
#include "common/float16.h"
#include "common/load.h"

namespace datapipes {
namespace {

// Each of these converts one stored value to float32.
struct Float16 {
  static constexpr std::int64_t kBytes = 2;
  static float value(const std::byte* from, float) { return float16_value(load<std::uint16_t>(from)); }
};
struct Bfloat16 {
  static constexpr std::int64_t kBytes = 2;
  static float value(const std::byte* from, float) { return bfloat16_value(load<std::uint16_t>(from)); }
};
struct Int8 {
  static constexpr std::int64_t kBytes = 1;
  static float value(const std::byte* from, float scale) { return static_cast<float>(load<std::int8_t>(from)) * scale; }
};

template <class Kind>
void decode_plainly(std::byte* to, const std::byte* from, std::int64_t width, const float* scale) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float value = Kind::value(from + i * Kind::kBytes, std::is_same_v<Kind, Int8> ? scale[i] : 0.0f);
    std::memcpy(to + 4 * i, &value, sizeof value);
  }
}

#if defined(DATAPIPES_AVX2)

DATAPIPES_AVX2 inline __m128i load_16(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
DATAPIPES_AVX2 inline __m128i load_8(const std::byte* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }

// Eight values at once.
template <class Kind>
DATAPIPES_AVX2 inline __m256 eight(const std::byte* from, const float* scale) {
  if constexpr (std::is_same_v<Kind, Float16>) {
    return _mm256_cvtph_ps(load_16(from));
  } else if constexpr (std::is_same_v<Kind, Bfloat16>) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(from)), 16));
  } else {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(from))), _mm256_loadu_ps(scale));
  }
}

// Eight values, 32 bytes; a streaming store of 32 bytes would need an address that is a multiple of them.
template <bool kStream>
DATAPIPES_AVX2 inline void store_eight(std::byte* to, __m256 values) {
  auto* const floats = reinterpret_cast<float*>(to);
  if constexpr (kStream) {
    _mm_stream_ps(floats, _mm256_castps256_ps128(values));
    _mm_stream_ps(floats + 4, _mm256_extractf128_ps(values, 1));
  } else {
    _mm256_storeu_ps(floats, values);
  }
}

template <class Kind, bool kStream>
DATAPIPES_AVX2 void decode_widely(std::byte* to, const std::byte* from, std::int64_t width, const float* scale) {
  std::int64_t i = 0;
  for (; i + 8 <= width; i += 8) store_eight<kStream>(to + 4 * i, eight<Kind>(from + i * Kind::kBytes, scale + i));
  if (i == width) return;
  if (width >= 8) {  // the last eight; some of them are written a second time
    const std::int64_t last = width - 8;
    const __m256 values = eight<Kind>(from + last * Kind::kBytes, scale + last);
    if constexpr (kStream) return _mm_stream_ps(reinterpret_cast<float*>(to + 4 * i), _mm256_extractf128_ps(values, 1));
    return store_eight<false>(to + 4 * last, values);
  }
  // A row of fewer than eight values goes through memory for eight.
  const auto few = static_cast<std::size_t>(width);
  alignas(32) std::byte stored[16] = {};
  alignas(32) float scales[8] = {}, values[8];
  std::memcpy(stored, from, few * Kind::kBytes);
  if constexpr (std::is_same_v<Kind, Int8>) std::memcpy(scales, scale, few * sizeof(float));
  _mm256_store_ps(values, eight<Kind>(stored, scales));
  std::memcpy(to, values, few * sizeof(float));
}

#endif

template <class Kind>
DecodeRow fastest(bool stream) {
#if defined(DATAPIPES_AVX2)
  if (has_avx2()) return stream ? decode_widely<Kind, true> : decode_widely<Kind, false>;
#endif
  (void)stream;
  return decode_plainly<Kind>;
}

template <class Choose>
DecodeRow of_kind(Stored stored, Choose&& choose) {
  switch (stored) {
    case Stored::kFloat16:
      return choose.template operator()<Float16>();
    case Stored::kBfloat16:
      return choose.template operator()<Bfloat16>();
    case Stored::kInt8:
      break;
  }
  return choose.template operator()<Int8>();
}

}  // namespace

DecodeRow plain_decoder(Stored stored) {
  return of_kind(stored, []<class Kind>() -> DecodeRow { return decode_plainly<Kind>; });
}
DecodeRow decoder(Stored stored) {
  return of_kind(stored, []<class Kind>() { return fastest<Kind>(false); });
}
DecodeRow streaming_decoder(Stored stored) {
  return of_kind(stored, []<class Kind>() { return fastest<Kind>(true); });
}

}  // namespace datapipes
