// test_changing_ids.cpp: ids in shared memory that another process overwrites while kernels read them. The result fits one of
// the values of an id, and no read leaves the memory.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "gather/gather_decoded.h"
#include "gather/gather_rows.h"
#include "partition/id_rank.h"
#include "partition/split_ids.h"
#include "sampling/compact.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kRows = 64, kFar = std::int64_t{1} << 42;  // row kFar lies outside all that is mapped
constexpr std::size_t kIds = 300, kChanging = 200;

// Ids of rows, one of which a child process sets to kFar and back until this object ends.
class ChangingIds {
 public:
  ChangingIds()
      : memory_(static_cast<std::int64_t*>(
            mmap(nullptr, kIds * sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    for (std::size_t i = 0; i < kIds; ++i) memory_[i] = static_cast<std::int64_t>(i) % kRows;
    const pid_t parent = getpid();
    writer_ = fork();
    if (writer_ != 0) return;
    auto* const changing = static_cast<volatile std::int64_t*>(&memory_[kChanging]);
    while (getppid() == parent) {
      for (int i = 0; i < 1000; ++i) *changing = i % 2 == 0 ? kFar : kRows - 1;
    }
    _exit(0);
  }
  ChangingIds(const ChangingIds&) = delete;
  ChangingIds& operator=(const ChangingIds&) = delete;
  ~ChangingIds() {
    kill(writer_, SIGKILL);
    waitpid(writer_, nullptr, 0);
    munmap(memory_, kIds * sizeof(std::int64_t));
  }
  std::span<const std::int64_t> ids() const { return {memory_, kIds}; }

 private:
  std::int64_t* memory_;
  pid_t writer_ = -1;
};

// Calls the kernel until its result has changed often, so that ids have probably changed during a call.
void call_while_ids_change(const std::function<void(std::span<const std::int64_t>)>& kernel) {
  CHECK(survives([&] {
    const ChangingIds changing;
    constexpr int kMostCalls = 50'000, kChanges = 300;
    bool had_far = false;
    for (int call = 0, changes = 0; call < kMostCalls && changes < kChanges; ++call) {
      bool has_far = false;
      try {
        kernel(changing.ids());
      } catch (const std::out_of_range&) {
        has_far = true;
      }
      changes += has_far != had_far;
      had_far = has_far;
    }
  }));
}

void rows_are_gathered() {
  for (const std::int64_t width : {4, 100}) {
    const std::vector<std::byte> table(static_cast<std::size_t>(kRows * width));
    std::vector<std::byte> out(kIds * static_cast<std::size_t>(width) * 2);
    const RowTable rows{table.data(), kRows, width, width};
    call_while_ids_change([&](auto ids) { gather_rows(rows, ids, out.data()); });
    call_while_ids_change([&](auto ids) { gather_decoded(rows, Stored::kFloat16, nullptr, ids, out.data()); });
    Ints places;
    for (std::int64_t i = 0; i < std::int64_t{kIds}; ++i) places.push_back(i);
    call_while_ids_change([&](auto ids) { place_rows<std::int64_t>(rows, ids, places, out.data(), kIds); });
    call_while_ids_change([&](auto ids) { place_rows<std::int64_t>(rows, places, ids, out.data(), kRows); });
  }
}

void ids_are_numbered_and_split() {
  call_while_ids_change([](auto ids) { compact(ids, kRows); });
  const std::vector<std::uint8_t> parts(kRows);
  const PartMap owners(std::span<const std::uint8_t>(parts), 1, kRows);
  call_while_ids_change([&](auto ids) { split_ids("x", owners, ids, {}, nullptr, 1); });
  const Ints own{1, 5, 63};
  const IdRank rank(own, kRows);
  std::vector<std::int64_t> found(kIds);
  call_while_ids_change([&](auto ids) {
    rank.rows(ids, std::span<std::int64_t>(found), 1);
    if (found[kChanging] < 0) throw std::out_of_range("-1");
  });
}

void seeds_are_sampled() {
  Ints indptr{0}, indices;
  for (std::int64_t v = 0; v < kRows; ++v) {
    for (std::int64_t i = 0; i < 5; ++i) indices.push_back((v * 7 + i) % kRows);
    indptr.push_back(std::ssize(indices));
  }
  const RowView<std::int64_t> rows{indptr, indices, kRows};
  call_while_ids_change([&](auto ids) { sample_hop<std::int64_t>(rows, ids, Uniform{3, false, 1}); });
  RowView<std::int64_t> part = rows;
  const Ints node_ids(kRows, 9);
  part.node_ids = node_ids;
  call_while_ids_change([&](auto ids) { sample_hop<std::int64_t>(part, ids, Uniform{3, false, 1}); });
  const Topology<std::int64_t> graph{{{"", kRows}}, {{"", 0, 0, rows, {}}}};
  NeighborsRequest request;
  request.sampled = {0};
  request.hops = {{Uniform{3, false, 1}}};
  call_while_ids_change([&](auto ids) { sample_neighbors(graph, std::vector<Seeds>{{0, ids}}, request); });
  const Ints groups(kIds, 0);
  request.groups = Groups{.count = 1};
  call_while_ids_change([&](auto ids) { sample_neighbors(graph, std::vector<Seeds>{{0, ids, groups}}, request); });
}

}  // namespace

FORKING_SUITE(test_changing_ids) {
  RUN(rows_are_gathered);
  RUN(ids_are_numbered_and_split);
  RUN(seeds_are_sampled);
}

}  // namespace datapipes
