// decode.h: the float32 values of rows that are stored with fewer bits.
//   float16, bfloat16: the same number, exactly, for subnormal numbers too.
//   int8: the number times the scale of its column, rounded once.
// A NaN stays a NaN of the same sign and payload; a NaN of float16 becomes quiet. No mode of the processor (flushing
// subnormals) changes the bits of float16 and bfloat16. All paths give the same bits. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>

namespace datapipes {

enum class Stored { kFloat16, kBfloat16, kInt8 };

// Bytes of one stored value.
constexpr std::int64_t stored_bytes(Stored stored) { return stored == Stored::kInt8 ? 1 : 2; }

// Writes the values of one row: `width` float32 to `to`, from `width` stored values at `from`; neither need be aligned.
//   scale float32 [width] for int8; the others do not read it.
using DecodeRow = void (*)(std::byte* to, const std::byte* from, std::int64_t width, const float* scale);

DecodeRow decoder(Stored stored);            // the fastest on this processor
DecodeRow plain_decoder(Stored stored);      // for any processor
DecodeRow streaming_decoder(Stored stored);  // stores past the cache: `to` and 4 * width are multiples of 16; see stream.h.
                                             // The plain decoder if the processor has no better

}  // namespace datapipes
