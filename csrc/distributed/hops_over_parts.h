// hops_over_parts.h: the hops of one minibatch over a graph in parts, without I/O: it makes the request to each part, and turns
// the answers into blocks. The result equals sample_neighbors over the whole graph, bit by bit.
//   start(seeds) numbers the seeds. Then for each hop: ask() returns the request to each part; take() gets the answers, in the
//   order of the requests, and returns the blocks. finish() returns the nodes of each type.
//   ask: requests to the parts that have rows to draw, ascending. A request has the ids by destination type, in the order of
//   their local ids, and the relations to draw, as places in `sampled`. A relation of fanout 0 and a part without rows are left
//   out. With groups (numbered_nodes.h) a row is a node of a group; the stream, the time and the window of the group accompany
//   its id. take: an answer is CSC over the rows of the part's first draw, then of its next draw, ...: indptr int64[rows + 1],
//   neighbors Id[picks], edge_ids int64[picks] if wanted.
// Answers are untrusted and checked whole: as many rows as asked, offsets that ascend from 0 to the number of picks, no more
// picks in a row than the fanout allows, neighbors inside the source type, edge ids not negative.
// Numberings use hash maps, whose memory depends on the nodes found, since many minibatches are in flight.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on a wrong answer; the
// message names the part. Throws std::length_error (ValueError) past 2^32 - 1 nodes, NoRoom (MemoryError) if a hop does not
// fit into memory. After an error the object must not be used again. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "graph/topology.h"
#include "partition/part_map.h"
#include "sampling/hops.h"
#include "sampling/numbered_nodes.h"
#include "sampling/numbering.h"

namespace datapipes {

struct PartedRelation {
  std::string op;  // names the relation in errors
  std::size_t src, dst;
};

struct GraphInParts {
  std::int64_t num_parts;
  std::vector<NodeType> node_types;
  std::vector<PartMap> owners;  // of each node type, for all of its ids
  std::vector<PartedRelation> relations;
};

struct PartedRequest : HopsRequest {
  std::vector<std::vector<std::int64_t>> fanouts = {};  // hop 0 (next to the seeds) first; of each sampled relation
  bool replace = false;
};

template <class Id>
struct PartAsk {
  struct Rows {
    std::size_t type;
    Buffer<Id> ids;
    Buffer<std::uint32_t> streams;  // of each id; empty if the groups have none
    Buffer<std::int64_t> times;     // as above
    Buffer<std::int64_t> windows;   // as above
  };
  std::int64_t part;
  std::vector<Rows> rows;          // of the destination types that have rows in the part, ascending
  std::vector<std::size_t> draws;  // places in `sampled`, ascending
};

template <class Id>
struct PartAnswer {
  std::span<const std::int64_t> indptr;
  std::span<const Id> neighbors;
  std::span<const std::int64_t> edge_ids;
};

// `Nodes` is PlainNodes<Id>, or NodesOfGroups<Id> if the request has groups.
template <class Id, class Nodes = PlainNodes<Id>>
class HopsOverParts {
 public:
  // `graph` must stay where it is.
  HopsOverParts(const GraphInParts& graph, PartedRequest request);
  HopsOverParts(const HopsOverParts&) = delete;
  HopsOverParts& operator=(const HopsOverParts&) = delete;
  ~HopsOverParts();

  std::vector<Buffer<Id>> start(std::span<const Seeds> seeds);
  bool has_hop() const { return hop_ < request_.fanouts.size(); }
  std::vector<PartAsk<Id>> ask();
  std::vector<CompactedHop<Id>> take(const std::vector<PartAnswer<Id>>& answers);
  FoundNodes<Id> finish();

 private:
  using Key = typename Nodes::Key;
  using Rows = typename PartAsk<Id>::Rows;
  struct Asked {
    std::int64_t part;
    std::vector<std::size_t> draws;
  };
  struct Cursor {  // the progress of merging a part's answer
    const PartAnswer<Id>* answer = nullptr;
    std::int64_t row = 0, end = 0;  // rows laid out, and the end of their picks
    std::int64_t pick = 0;          // picks numbered
  };

  struct Layout {
    Buffer<std::int64_t> indptr;
    std::int64_t num_picks() const { return indptr[indptr.size() - 1]; }
    std::int64_t largest() const { return 0; }  // picks are copied, without scratch memory
  };

  void look_up_owners(std::size_t type);
  std::vector<Rows> split(std::size_t type) const;
  void add_groups(std::size_t type, std::vector<Rows>& rows) const;
  void check(const Asked& asked, const PartAnswer<Id>& answer) const;
  CompactedHop<Id> merge(std::size_t place);
  Buffer<std::int64_t> lay_out(std::size_t place);
  template <class Prefetch, class Use>
  void copy_picks(const PartedRelation& relation, const Buffer<std::int64_t>& indptr, Key* found, std::int64_t* out_ids,
                  Prefetch&& prefetch, Use&& use);

  const GraphInParts& graph_;
  PartedRequest request_;
  Hops<Id, Nodes> hops_;
  std::vector<std::vector<PartNumber>> owners_;  // of each node type: the parts of the nodes that have been destinations
  std::vector<std::vector<std::int64_t>> rows_;  // of each node type: rows of the hop by part; empty: no requests
  std::vector<Asked> asked_;
  std::vector<Cursor> cursors_;  // of each part
  std::size_t hop_ = 0;
  bool is_asked_ = false;  // whether ask() was called for this hop
  bool usable_ = true;     // false after an error, when the content of the maps is unknown
};

}  // namespace datapipes
