// numbering.h: the local ids of one node type in one minibatch, by first occurrence.
//   It is resumable: ids of the seeds, then of each hop are numbered as they arrive, in one call or several. Local ids may be
//   left out, as gaps for padding: skip_to(). After close() ids are only looked up. With the first ids it borrows an id map from
//   the shelf, direct up to `direct_limit` nodes, hashed beyond. A type without nodes in the minibatch takes no memory.
// The caller has checked that the ids are in [0, num_nodes). Throws std::length_error (ValueError) past 2^32 - 1 nodes,
// or past the caller's bound.
// Touches no Python object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/buffer.h"
#include "sampling/id_map.h"
#include "sampling/id_map_shelf.h"
#include "sampling/range.h"

namespace datapipes {

inline constexpr std::size_t kMostFound = 256;  // ids that are looked up in one call

template <class Id>
class Numbering {
 public:
  explicit Numbering(std::int64_t num_nodes) : num_nodes_(num_nodes) {}
  Numbering(Numbering&&) noexcept = default;
  Numbering& operator=(Numbering&&) noexcept = default;

  std::int64_t num_nodes() const { return num_nodes_; }
  std::int64_t count() const { return count_; }                       // of the local ids, with those of gaps
  std::span<const Id> nodes() const { return nodes_.first(count_); }  // of a gap: 0

  // The local ids of nodes.
  std::span<const Range> ranges() {
    ranges_.back().end = count_;
    return ranges_;
  }

  // Leaves out the local ids below `place` that are not given out yet. Until finish() they have the node 0, which may be
  // read as any other.
  void skip_to(std::int64_t place, std::int64_t most) {
    if (place <= count_) return;
    check_local_ids(place, most);
    grow(place);
    std::fill_n(nodes_.data() + count_, place - count_, Id{0});
    ranges_.back().end = count_;
    num_gaps_ += place - count_;
    count_ = place;
    ranges_.push_back({place, place});
  }

  // Makes room for `more` ids. Returns the old memory of the nodes, for a caller that still reads it. `direct_left` is the
  // number of nodes that may still have a direct map in this minibatch; borrowing a map reduces it. `most` is the number of
  // local ids that the result can hold.
  Buffer<Id> make_room(std::int64_t more, std::int64_t& direct_left, std::int64_t most = kMostLocalIds<Id>) {
    if (!has_map_) {
      if (num_nodes_ <= direct_left) {
        direct_left -= num_nodes_;
        borrow<DirectIdMap<Id>>();
      } else {
        borrow<HashIdMap<Id>>();
      }
    }
    const std::int64_t bound = count_ + std::min(more, num_nodes_ - (count_ - num_gaps_));  // the graph has no more nodes
    check_local_ids(bound, most);
    visit([&](auto& map) { map.reserve(nodes(), ranges(), bound - count_); });
    return grow(bound);
  }

  // Calls use(map) with the map in use, which `number` needs: so a loop asks only once for the kind of map. Requires that
  // room was made.
  template <class Use>
  void visit(Use&& use) {
    std::visit([&](auto& map) { use(*map); }, map_);
  }

  // Writes the local id of each of `ids`, for which there is room. `local` may be ids.data().
  template <class Map, class Local>
  void number(Map& map, std::span<const Id> ids, Local* local) {
    count_ = map.number(ids, count_, nodes_.data(), local);
  }
  template <class Map, class Local>
  void number_ahead(Map& map, std::span<const Id> ids, Local* local) {
    count_ = datapipes::number_ahead(map, ids, count_, nodes_.data(), local);
  }

  // Makes room for `ids`, and writes the local id of each; `local` may be ids.data().
  template <class Local>
  void number_all(std::span<const Id> ids, Local* local, std::int64_t& direct_left, std::int64_t most = kMostLocalIds<Id>) {
    make_room(std::ssize(ids), direct_left, most);
    visit([&](auto& map) { number_ahead(map, ids, local); });
  }

  // From now on ids are only looked up.
  void close() { filter_ = IdFilter<Id>(nodes()); }

  // After close(): writes the places of those of `ids`, at most kMostFound, that have local ids, and these local ids. Returns
  // how many. The loops have no branch, as no predictor can guess which ids are found.
  template <class Local>
  std::size_t find(std::span<const Id> ids, std::uint32_t* places, Local* local) const {
    const IdFilter<Id>& filter = filter_;
    std::size_t possible = 0, found = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      places[possible] = static_cast<std::uint32_t>(i);
      possible += filter.may_have(ids[i]);
    }
    if (possible == 0) return 0;  // a numbering without nodes has no map
    std::visit(
        [&](const auto& map) {
          for (std::size_t i = 0; i < possible; ++i) {
            const std::int64_t id = map->find(ids[places[i]]);
            places[found] = places[i];
            local[found] = static_cast<Local>(id);
            found += id >= 0;
          }
        },
        map_);
    return found;
  }

  // Gives the map back and returns the distinct ids. If an error destroys the numbering before finish(), the map is
  // destroyed too, since its content is unknown.
  Buffer<Id> finish() {
    if (has_map_)
      std::visit([](auto& map) { IdMapShelf<std::remove_reference_t<decltype(*map)>>::instance().give(std::move(map)); }, map_);
    nodes_.resize(count_);
    return std::move(nodes_);
  }

 private:
  Buffer<Id> grow(std::int64_t size) {
    if (nodes_.size() > size) return {};
    Buffer<Id> larger(size + 1);  // number() writes one entry past the last
    std::copy_n(nodes_.data(), count_, larger.data());
    return std::exchange(nodes_, std::move(larger));
  }

  template <class Map>
  void borrow() {
    map_ = IdMapShelf<Map>::instance().take(num_nodes_);
    has_map_ = true;
    visit([this](auto& map) { map.start(num_nodes_); });
  }

  std::int64_t num_nodes_;
  std::int64_t count_ = 0, num_gaps_ = 0;
  std::vector<Range> ranges_{{0, 0}};
  bool has_map_ = false;
  IdFilter<Id> filter_;
  Buffer<Id> nodes_;
  std::variant<std::unique_ptr<DirectIdMap<Id>>, std::unique_ptr<HashIdMap<Id>>> map_;
};

}  // namespace datapipes
