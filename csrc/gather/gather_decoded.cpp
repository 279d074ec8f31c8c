#include "gather/gather_decoded.h"

#include "common/stream.h"
#include "gather/row_loop.h"

namespace datapipes {

using namespace row_loop;

template <class Id>
void gather_decoded(RowTable table, Stored stored, const float* scale, std::span<const Id> ids, std::byte* out, int threads) {
  const Named<Id> named{ids, table.num_rows, "gather_decoded", "row id"};
  const std::int64_t width = table.row_bytes / stored_bytes(stored), out_bytes = 4 * width, count = std::ssize(ids);
  if (width == 0) return check_all(named, InOrder(), count);
  const bool stream = streams(count, out_bytes, out);
  const DecodeRow decode = stream ? streaming_decoder(stored) : decoder(stored);
  in_row_turns(count, out_bytes, threads, [&](std::int64_t begin, std::int64_t rows) {
    copy_rows(table, named.from(begin), InOrder{begin}, rows, out, out_bytes,
              [&](std::byte* to, const std::byte* from) { decode(to, from, width, scale); });
    if (stream) stream_fence();
  });
}

template void gather_decoded(RowTable, Stored, const float*, std::span<const std::int32_t>, std::byte*, int);
template void gather_decoded(RowTable, Stored, const float*, std::span<const std::int64_t>, std::byte*, int);

}  // namespace datapipes
