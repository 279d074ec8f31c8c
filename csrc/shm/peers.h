// peers.h: the processes that have the segment attached (PROTOCOL.md, section 4). The caller holds the mutex.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shm/state.h"

namespace datapipes::shm {

class Peers {
 public:
  Peers(Header& header, Peer* peers) : header_(header), peers_(peers, header.num_peers) {}

  bool full() const;
  std::uint32_t add(const ProcessId& id, std::uint32_t roles);  // throws std::runtime_error where the table is full
  void mark(std::uint32_t peer, std::uint32_t role) { peers_[peer].roles |= role; }
  void leave(std::uint32_t peer, bool holds, bool by_exit);  // while it holds messages its entry stays
  void remove(std::uint32_t peer);

  // All but `me`.
  std::vector<std::pair<std::uint32_t, ProcessId>> others(std::uint32_t me) const;
  bool is_still(std::uint32_t peer, const ProcessId& id) const;
  void bury(std::uint32_t peer, std::uint32_t lost);  // records the death, unless it had said goodbye, and removes it

  // Whether another one is here that could do what `role` says: it has, or it has done nothing yet. A sender may work for long
  // before it first sends; a receiver begins by receiving, so one that did not while others did is not counted on.
  bool others_may(std::uint32_t me, std::uint32_t role) const;
  bool has(std::uint32_t peer, std::uint32_t role) const { return (peers_[peer].roles & role) != 0; }

  // Deaths numbered from `told` on of those that might have sent, in words, and their pids.
  std::pair<std::string, std::vector<std::int32_t>> deaths_of_senders(std::uint64_t told) const;

 private:
  Header& header_;
  std::span<Peer> peers_;
};

}  // namespace datapipes::shm
