#include "distributed/hops_over_parts.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "common/inside.h"
#include "graph/row_view.h"
#include "sampling/hop_room.h"

namespace datapipes {
namespace {

PartedRequest without_direct_maps(PartedRequest request) {
  request.direct_limit = 0;
  return request;
}

constexpr std::int64_t kBlockPicks = 256;  // picks whose map entries are prefetched together

[[noreturn]] void throw_wrong_answer(const std::string& op, std::int64_t part, const std::string& found,
                                     const std::string& allowed) {
  throw std::invalid_argument(op + ": part " + std::to_string(part) + " answered " + found + "; " + allowed +
                              ". Look at the server of this part: its version, its files.");
}

std::string number(std::int64_t value) { return std::to_string(value); }

}  // namespace

template <class Id, class Nodes>
HopsOverParts<Id, Nodes>::HopsOverParts(const GraphInParts& graph, PartedRequest request)
    : graph_(graph),
      request_(without_direct_maps(std::move(request))),
      hops_(graph.node_types, request_),
      owners_(graph.node_types.size()),
      rows_(graph.node_types.size()),
      cursors_(static_cast<std::size_t>(graph.num_parts)) {}

template <class Id, class Nodes>
HopsOverParts<Id, Nodes>::~HopsOverParts() {
  try {
    if (usable_) hops_.finish();     // gives the maps back
  } catch (const std::bad_alloc&) {  // no room on the shelf: the maps are freed
  }
}

template <class Id, class Nodes>
std::vector<Buffer<Id>> HopsOverParts<Id, Nodes>::start(std::span<const Seeds> seeds) {
  usable_ = false;
  auto local = hops_.start(seeds, [](const NodeType& type) { return type.name; });
  usable_ = true;
  return local;
}

template <class Id, class Nodes>
std::vector<PartAsk<Id>> HopsOverParts<Id, Nodes>::ask() {
  if (!usable_ || !has_hop()) throw std::logic_error("hops_over_parts: there is no hop to ask for.");
  usable_ = false;
  const auto& fanouts = request_.fanouts[hop_];
  hops_.begin_hop();
  for (auto& rows : rows_) rows.clear();
  asked_.clear();
  std::vector<std::vector<Rows>> rows_of(rows_.size());
  for (std::size_t i = 0; i < request_.sampled.size(); ++i) {
    const std::size_t dst = graph_.relations[request_.sampled[i]].dst;
    if (fanouts[i] == 0 || !rows_[dst].empty() || !hops_.has_rows(dst)) continue;
    look_up_owners(dst);
    rows_[dst].assign(static_cast<std::size_t>(graph_.num_parts), 0);
    for (auto d = static_cast<std::size_t>(hops_.first(dst)); d < owners_[dst].size(); ++d) ++rows_[dst][owners_[dst][d]];
    rows_of[dst] = split(dst);
  }
  std::vector<PartAsk<Id>> asks;
  for (std::size_t part = 0; part < static_cast<std::size_t>(graph_.num_parts); ++part) {
    PartAsk<Id> ask{static_cast<std::int64_t>(part), {}, {}};
    for (std::size_t type = 0; type < rows_.size(); ++type)
      if (!rows_[type].empty() && rows_[type][part] > 0) ask.rows.push_back(std::move(rows_of[type][part]));
    if (ask.rows.empty()) continue;
    for (std::size_t i = 0; i < request_.sampled.size(); ++i) {
      const auto& rows = rows_[graph_.relations[request_.sampled[i]].dst];
      if (fanouts[i] != 0 && !rows.empty() && rows[part] > 0) ask.draws.push_back(i);
    }
    asked_.push_back({ask.part, ask.draws});
    asks.push_back(std::move(ask));
  }
  is_asked_ = usable_ = true;
  return asks;
}

// Finds the parts of the nodes that are destinations for the first time.
template <class Id, class Nodes>
void HopsOverParts<Id, Nodes>::look_up_owners(std::size_t type) {
  const auto keys = hops_.destinations(type);
  auto& owners = owners_[type];
  const std::size_t known = owners.size();
  owners.resize(keys.size());
  const char* const op = graph_.node_types[type].name.c_str();
  if constexpr (Nodes::kGroups) {
    std::vector<Id> ids;
    ids.reserve(keys.size() - known);
    for (const Key key : keys.subspan(known)) ids.push_back(hops_.nodes().id(key));
    graph_.owners[type].owners(op, std::span<const Id>(ids), owners.data() + known);
  } else {
    graph_.owners[type].owners(op, keys.subspan(known), owners.data() + known);
  }
}

template <class Id, class Nodes>
auto HopsOverParts<Id, Nodes>::split(std::size_t type) const -> std::vector<Rows> {
  std::vector<Rows> rows;
  std::vector<Id*> next;
  for (const std::int64_t count : rows_[type]) {
    rows.push_back({type, count == 0 ? Buffer<Id>() : Buffer<Id>(count), {}, {}, {}});
    next.push_back(rows.back().ids.data());
  }
  const auto keys = hops_.destinations(type);
  const auto& owners = owners_[type];
  for (auto d = static_cast<std::size_t>(hops_.first(type)); d < owners.size(); ++d)
    *next[owners[d]]++ = hops_.nodes().id(keys[d]);
  add_groups(type, rows);
  return rows;
}

// Adds the stream, the time and the window of each row, if there are groups.
template <class Id, class Nodes>
void HopsOverParts<Id, Nodes>::add_groups(std::size_t type, std::vector<Rows>& rows) const {
  if constexpr (Nodes::kGroups) {
    const Groups& groups = *request_.groups;
    std::vector<std::int64_t> next(rows.size(), 0);
    for (Rows& of : rows) {
      if (!groups.streams.empty()) of.streams = Buffer<std::uint32_t>(std::ssize(of.ids));
      if (!groups.times.empty()) of.times = Buffer<std::int64_t>(std::ssize(of.ids));
      if (!groups.windows.empty()) of.windows = Buffer<std::int64_t>(std::ssize(of.ids));
    }
    const auto keys = hops_.destinations(type);
    const auto& owners = owners_[type];
    for (auto d = static_cast<std::size_t>(hops_.first(type)); d < owners.size(); ++d) {
      Rows& of = rows[owners[d]];
      const std::int64_t at = next[owners[d]]++;
      const auto group = static_cast<std::size_t>(hops_.nodes().group(keys[d]));
      if (!groups.streams.empty()) of.streams[at] = groups.streams[group];
      if (!groups.times.empty()) of.times[at] = groups.times[group];
      if (!groups.windows.empty()) of.windows[at] = groups.windows[group];
    }
  }
}

template <class Id, class Nodes>
std::vector<CompactedHop<Id>> HopsOverParts<Id, Nodes>::take(const std::vector<PartAnswer<Id>>& answers) {
  if (!usable_ || !has_hop() || !is_asked_) throw std::logic_error("hops_over_parts: ask() comes before take().");
  is_asked_ = usable_ = false;
  if (answers.size() != asked_.size())
    throw std::invalid_argument("hops_over_parts: " + std::to_string(answers.size()) + " answers for " +
                                std::to_string(asked_.size()) + " parts that were asked.");
  for (std::size_t i = 0; i < answers.size(); ++i) {
    check(asked_[i], answers[i]);
    cursors_[static_cast<std::size_t>(asked_[i].part)] = {&answers[i]};
  }
  const auto& fanouts = request_.fanouts[hop_];
  // Relation by relation, in the order of the answers.
  auto blocks = hops_.make_blocks(
      graph_.relations, [&](std::size_t place) { return fanouts[place]; }, [&](std::size_t place) { return merge(place); });
  ++hop_;
  usable_ = true;
  return blocks;
}

// Checks the lengths of an answer.
template <class Id, class Nodes>
void HopsOverParts<Id, Nodes>::check(const Asked& asked, const PartAnswer<Id>& answer) const {
  const std::string& op = graph_.relations[request_.sampled[asked.draws.front()]].op;
  const auto part = static_cast<std::size_t>(asked.part);
  std::int64_t rows = 0;
  for (const std::size_t place : asked.draws) rows += rows_[graph_.relations[request_.sampled[place]].dst][part];
  const std::int64_t offsets = std::ssize(answer.indptr), picks = std::ssize(answer.neighbors);
  if (offsets != rows + 1)
    throw_wrong_answer(op, asked.part, "an indptr of " + number(offsets) + " entries",
                       number(rows + 1) + " are needed, for " + number(rows) + " rows");
  if (answer.indptr.front() != 0 || answer.indptr.back() != picks) {
    throw_wrong_answer(op, asked.part, "an indptr from " + number(answer.indptr.front()) + " to " + number(answer.indptr.back()),
                       "it must go from 0 to the number of neighbors, " + number(picks));
  }
  const std::int64_t edge_ids = std::ssize(answer.edge_ids), wanted = request_.want_edge_ids ? picks : 0;
  if (edge_ids != wanted) throw_wrong_answer(op, asked.part, number(edge_ids) + " edge ids", number(wanted) + " are needed");
}

template <class Id, class Nodes>
CompactedHop<Id> HopsOverParts<Id, Nodes>::merge(std::size_t place) {
  const PartedRelation& relation = graph_.relations[request_.sampled[place]];
  const HopRoom room{relation.op.c_str(), static_cast<std::int64_t>(hop_), request_.fanouts[hop_][place], request_.replace};
  return hops_.block(
      room, relation.src, relation.dst, [&] { return Layout{lay_out(place)}; },
      [&](const Layout& layout, auto& numbering, auto& map, const auto& picks) {
        copy_picks(
            relation, layout.indptr, picks.keys,
            picks.edge_ids, [&](Key key) __attribute__((always_inline)) { map.prefetch(key); },
            [&](std::int64_t first, std::span<const Key> keys) { numbering.number(map, keys, picks.local + first); });
      },
      [&](const Layout& layout, const Numbering<Key>& numbering, EdgesAmong<Id>& edges) {
        Buffer<Key> copied(layout.num_picks());
        Buffer<std::int64_t> edge_ids(request_.want_edge_ids ? layout.num_picks() : 0);
        copy_picks(
            relation, layout.indptr, copied.data(), edge_ids.data(), [](Key) {},
            [&](std::int64_t first, std::span<const Key> keys) {
              edges.take(numbering, first, keys, request_.want_edge_ids ? edge_ids.data() + first : nullptr);
            });
      });
}

// Checks the offsets of a relation's rows, and returns the offsets of the merged rows.
template <class Id, class Nodes>
Buffer<std::int64_t> HopsOverParts<Id, Nodes>::lay_out(std::size_t place) {
  const PartedRelation& relation = graph_.relations[request_.sampled[place]];
  const std::int64_t fanout = request_.fanouts[hop_][place], num_dst = hops_.num_dst(relation.dst);
  const std::int64_t most = fanout < 0 ? std::numeric_limits<std::int64_t>::max() : fanout;
  const bool all_or_none = request_.replace && fanout >= 0;
  Buffer<std::int64_t> indptr(num_dst + 1);
  const std::int64_t first = hops_.first(relation.dst);
  std::fill_n(indptr.data(), first + 1, std::int64_t{0});
  const PartNumber* const owners = owners_[relation.dst].data();
  std::int64_t total = 0;
  for (std::int64_t d = first; d < num_dst; ++d) {
    Cursor& cursor = cursors_[owners[d]];
    const std::int64_t begin = cursor.end, end = cursor.answer->indptr[static_cast<std::size_t>(++cursor.row)];
    if (end < begin || end > std::ssize(cursor.answer->neighbors) || end - begin > most ||
        (all_or_none && end != begin && end - begin != fanout)) {
      throw_wrong_answer(relation.op, owners[d],
                         "that the picks of node " +
                             number(hops_.nodes().id(hops_.destinations(relation.dst)[static_cast<std::size_t>(d)])) +
                             " begin at " + number(begin) + " and end at " + number(end),
                         "the ends must ascend to " + number(std::ssize(cursor.answer->neighbors)) + ", by " +
                             (fanout < 0 ? "any number" : (all_or_none ? "0 or " : "at most ") + number(fanout)) + " a node");
    }
    cursor.end = end;
    indptr[d + 1] = total += end - begin;
  }
  return indptr;
}

// Copies the picks, in the order of the destinations. Calls prefetch(key) for each pick of a block while it is copied, and
// use(first pick, keys) a block later.
template <class Id, class Nodes>
template <class Prefetch, class Use>
void HopsOverParts<Id, Nodes>::copy_picks(const PartedRelation& relation, const Buffer<std::int64_t>& indptr, Key* found,
                                          std::int64_t* out_ids, Prefetch&& prefetch, Use&& use) {
  const std::int64_t num_dst = hops_.num_dst(relation.dst), first = hops_.first(relation.dst);
  const std::int64_t num_sources = graph_.node_types[relation.src].num_nodes;
  [[maybe_unused]] const Key* const destinations = hops_.destinations(relation.dst).data();
  const PartNumber* const owners = owners_[relation.dst].data();
  std::int64_t copied = 0, used = 0;
  [[maybe_unused]] std::int64_t column = first;
  const auto use_to = [&](std::int64_t end) {
    use(used, std::span<const Key>(found + used, static_cast<std::size_t>(end - used)));
    used = end;
  };
  const auto copy = [&](const PartAnswer<Id>& answer, std::int64_t part, std::int64_t from, std::int64_t count) {
    const Id* const neighbors = answer.neighbors.data() + from;
    for (std::int64_t i = 0; i < count; ++i) {
      const Id neighbor = neighbors[i];
      if (!is_inside(neighbor, num_sources)) {
        throw_wrong_answer(relation.op, part, "the neighbor " + number(neighbor),
                           "ids must be in [0, " + number(num_sources) + ")");
      }
      Key key = neighbor;
      if constexpr (Nodes::kGroups) {
        while (indptr[column + 1] <= copied + i) ++column;
        key = hops_.nodes().found(destinations[column], neighbor);
      }
      prefetch(key);
      found[copied + i] = key;
    }
    if (request_.want_edge_ids) {
      const std::int64_t* const edge_ids = answer.edge_ids.data() + from;
      std::int64_t any = 0;
      for (std::int64_t i = 0; i < count; ++i) any |= out_ids[copied + i] = edge_ids[i];
      if (any < 0) throw_wrong_answer(relation.op, part, "a negative edge id", "edge ids must be 0 or more");
    }
    copied += count;
  };
  for (std::int64_t d = first; d < num_dst;) {
    const std::int64_t begin = indptr[d];
    if (indptr[d + 1] == begin) {  // the usual case with many relations
      ++d;
      continue;
    }
    const PartNumber part = owners[d];
    do ++d;
    while (d < num_dst && (owners[d] == part || indptr[d + 1] == indptr[d]));
    Cursor& cursor = cursors_[part];
    for (std::int64_t left = indptr[d] - begin; left > 0;) {
      const std::int64_t count = std::min(left, kBlockPicks - copied % kBlockPicks);
      copy(*cursor.answer, part, cursor.pick, count);
      cursor.pick += count;
      left -= count;
      if (copied % kBlockPicks == 0 && copied > kBlockPicks) use_to(copied - kBlockPicks);
    }
  }
  use_to(copied);
}

template <class Id, class Nodes>
FoundNodes<Id> HopsOverParts<Id, Nodes>::finish() {
  if (!usable_) throw std::logic_error("hops_over_parts: an error has ended this minibatch.");
  usable_ = false;
  return hops_.finish();
}

template class HopsOverParts<std::int32_t>;
template class HopsOverParts<std::int64_t>;
template class HopsOverParts<std::int32_t, NodesOfGroups<std::int32_t>>;
template class HopsOverParts<std::int64_t, NodesOfGroups<std::int64_t>>;

}  // namespace datapipes
