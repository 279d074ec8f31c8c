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
  std::uint32_t add(const ProcessId& id, std::uint32_t roles);  // throws std::runtime_error if the table is full
  void mark(std::uint32_t peer, std::uint32_t role) { peers_[peer].roles |= role; }
  void leave(std::uint32_t peer, bool holds, bool by_exit);  // `holds`: it owns slots or the turn; its entry stays
  void remove(std::uint32_t peer);

  // Returns every peer except `me`.
  std::vector<std::pair<std::uint32_t, ProcessId>> others(std::uint32_t me) const;
  bool is_still(std::uint32_t peer, const ProcessId& id) const;
  // Removes a peer that has ended. Records a death, unless the peer had left. `lost`: messages it was writing.
  void bury(std::uint32_t peer, std::uint32_t lost);

  // Whether another peer is here that could play `role`: it has done so before, or it has done nothing yet. A sender
  // may work for long before it first sends. A receiver receives at once, so a peer that was here when a receiver was
  // lost and has done nothing does not count as a receiver.
  bool others_may(std::uint32_t me, std::uint32_t role) const;
  bool has(std::uint32_t peer, std::uint32_t role) const { return (peers_[peer].roles & role) != 0; }

  // Returns the deaths from number `told` on of peers that sent or did nothing yet: as text for an error, and their
  // pids.
  std::pair<std::string, std::vector<std::int32_t>> deaths_of_senders(std::uint64_t told) const;

 private:
  Header& header_;
  std::span<Peer> peers_;
};

}  // namespace datapipes::shm
