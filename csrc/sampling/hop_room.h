// hop_room.h: refuses a hop whose result does not fit into the memory that is left. Without this look the system grants
// memory that it does not have, and kills the process while the hop is drawn.
//   check_hop_room(room, layout, bytes_per_pick, held) looks only once a minibatch has kPicksUnchecked picks and columns,
//   `held` of them in its earlier blocks. So a minibatch of common size pays one comparison a hop. A layout has num_picks()
//   and largest(), the picks of the column that needs most scratch memory (HopPlan of draw_hop.h is one).
//   HopRoom::refuse_allocation(picks, columns) names the hop where an allocation failed in spite of the look.
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

// A hop as its errors name it.
struct HopRoom {
  const char* op;
  std::int64_t hop;  // 0 is next to the seeds
  std::int64_t fanout;
  bool replace;

  // Throws NoRoom if `picks` picks of `bytes_per_pick`, and scratch for the `largest` column, exceed the memory left.
  void check(std::int64_t picks, std::int64_t largest, std::int64_t bytes_per_pick) const;
  [[noreturn]] void refuse_allocation(std::int64_t picks, std::int64_t columns) const;
};

template <class Layout>
void check_hop_room(const HopRoom& room, const Layout& layout, std::int64_t bytes_per_pick, std::int64_t held = 0) {
  const std::int64_t picks = layout.num_picks();
  if (picks < kPicksUnchecked && picks + held < kPicksUnchecked) return;
  room.check(picks, layout.largest(), bytes_per_pick);
}

}  // namespace datapipes
