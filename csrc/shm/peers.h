// peers.h: the processes that have the segment attached (PROTOCOL.md, section 4). The caller holds the mutex. Throws
// Damaged if the table has a value that no peer writes.
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
  Peers(Header& header, Peer* peers) : header_(header), peers_(peers, kNumPeers) {}

  bool full() const;
  std::uint32_t add(const ProcessId& id, std::uint32_t roles);  // throws std::runtime_error if the table is full
  // `pid`: this process, which has the entry
  void mark(std::uint32_t peer, std::int32_t pid, std::uint32_t role);
  void leave(std::uint32_t peer, bool holds, bool by_exit);  // `holds`: it owns slots or the turn; its entry stays
  void remove(std::uint32_t peer);

  // Returns every peer except `me`.
  std::vector<std::pair<std::uint32_t, ProcessId>> others(std::uint32_t me) const;
  bool is_still(std::uint32_t peer, const ProcessId& id) const;
  // Removes a peer that has ended. Records a death, unless the peer had left. `lost`: messages it was writing.
  void bury(std::uint32_t peer, std::uint32_t lost);

  // Whether another peer is here that could play `role`: it has done so before, or it has done nothing yet. A sender may
  // work for long before its first send. A receiver receives at once: so a peer that was already here when a receiver was
  // lost, and has done nothing, does not count as a receiver.
  bool others_may(std::uint32_t me, std::uint32_t role) const;
  bool has(std::uint32_t peer, std::uint32_t role) const { return (peers_[peer].roles.get() & role) != 0; }
  bool is_free(std::uint32_t peer) const { return peer >= peers_.size() || state_of(peers_[peer]) == PeerState::kFree; }

  // Returns the deaths with numbers in [told, deaths), at most the newest 64, of peers that had sent or done nothing yet: as
  // text for an error, and their pids.
  std::pair<std::string, std::vector<std::int32_t>> deaths_of_senders(std::uint64_t told, std::uint64_t deaths) const;

 private:
  PeerState state_of(const Peer& peer) const;
  Header& header_;
  std::span<Peer> peers_;
};

}  // namespace datapipes::shm
