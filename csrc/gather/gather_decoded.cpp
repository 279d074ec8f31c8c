#include "gather/gather_decoded.h"

#include "common/stream.h"
#include "gather/row_loop.h"

namespace datapipes {

using namespace row_loop;

template <class Id>
void gather_decoded(RowTable table, Stored stored, const float* scale, std::span<const Id> ids, std::byte* out, int threads) {
  check_inside("gather_decoded", "row id", ids, table.num_rows);
  const std::int64_t width = table.row_bytes / stored_bytes(stored), out_bytes = 4 * width, count = std::ssize(ids);
  if (width == 0 || count == 0) return;
  const bool stream = streams(count, out_bytes, out);
  const DecodeRow decode = stream ? streaming_decoder(stored) : decoder(stored);
  in_row_turns(count, out_bytes, threads, [&](std::int64_t begin, std::int64_t rows) {
    copy_rows(table, Named<Id>{ids}.from(begin), InOrder{begin}, rows, out, out_bytes,
              [&](std::byte* to, const std::byte* from) { decode(to, from, width, scale); });
    if (stream) stream_fence();
  });
}

template void gather_decoded(RowTable, Stored, const float*, std::span<const std::int32_t>, std::byte*, int);
template void gather_decoded(RowTable, Stored, const float*, std::span<const std::int64_t>, std::byte*, int);

}  // namespace datapipes
