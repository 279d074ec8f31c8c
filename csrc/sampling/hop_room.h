// hop_room.h: refuses a hop whose result does not fit into the memory that is left. Without this check the system grants
// memory that it does not have, and kills the process while the hop is drawn.
//   check_hop_room(room, layout, bytes_per_pick, held) looks up the memory left only if the minibatch has kPicksUnchecked picks
//   and columns, `held` of them in earlier blocks. So a minibatch of common size costs one comparison a hop. A layout has
//   num_picks() and largest(), the most picks of a column, which sets the scratch memory (HopPlan of draw_hop.h is a layout).
//   HopRoom::refuse_allocation(picks, columns) names the hop if an allocation fails in spite of the check.
//   limit_hops(bytes) bounds the picks of all hops of a minibatch made by this thread; it returns the previous bound.
// Throws NoRoom (MemoryError). Touches no Python object.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace datapipes {

inline constexpr std::int64_t kPicksUnchecked = std::int64_t{1} << 24;  // 128 MiB of positions

class NoRoom : public std::bad_alloc {
 public:
  explicit NoRoom(const std::string& message) : message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // shared, so that copying the error cannot throw
};

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
std::uint64_t limit_hops(std::uint64_t bytes);

// The name of a hop in errors.
struct HopRoom {
  const char* op;
  std::int64_t hop;  // 0 is next to the seeds
  std::int64_t fanout;
  bool replace;

  // Throws NoRoom if `picks` picks of `bytes_per_pick`, and scratch for the `largest` column, exceed the memory left.
  void check(std::int64_t picks, std::int64_t largest, std::int64_t bytes_per_pick) const;
  // Throws NoRoom if `picks` picks, and those of earlier hops, are beyond what limit_hops allows this thread.
  void check_limit(std::int64_t picks, std::int64_t held, std::int64_t kept_per_pick) const;
  [[noreturn]] void refuse_allocation(std::int64_t picks, std::int64_t columns) const;
};

// `scratch_per_pick` of the bytes of a pick are free again after the hop.
template <class Layout>
void check_hop_room(const HopRoom& room, const Layout& layout, std::int64_t bytes_per_pick, std::int64_t held = 0,
                    std::int64_t scratch_per_pick = 0) {
  const std::int64_t picks = layout.num_picks();
  room.check_limit(picks, held, bytes_per_pick - scratch_per_pick);
  if (picks < kPicksUnchecked && picks + held < kPicksUnchecked) return;
  room.check(picks, layout.largest(), bytes_per_pick);
}

}  // namespace datapipes
