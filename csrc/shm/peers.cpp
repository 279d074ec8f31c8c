#include "shm/peers.h"

#if defined(__linux__)
#include <algorithm>
#include <stdexcept>

#include "shm/step.h"

namespace datapipes::shm {

bool Peers::full() const {
  return std::ranges::none_of(peers_, [](const Peer& peer) { return peer.state == PeerState::kFree; });
}

std::uint32_t Peers::add(const ProcessId& id, std::uint32_t roles) {
  const auto found = std::ranges::find_if(peers_, [](const Peer& peer) { return peer.state == PeerState::kFree; });
  if (found == peers_.end()) {
    throw std::runtime_error(
        "ShmChannel: " + std::to_string(peers_.size()) +
        " processes have attached this channel, the most allowed. Close it in processes that do not use it.");
  }
  found->id = id;
  found->roles = roles;
  found->number = ++header_.attached;
  DATAPIPES_SHM_STEP("a peer comes to its state");
  found->state = PeerState::kHere;
  return static_cast<std::uint32_t>(found - peers_.begin());
}

void Peers::leave(std::uint32_t peer, bool holds, bool by_exit) {
  header_.exits += by_exit;
  if (has(peer, kHasReceived)) header_.receiver_lost = header_.attached;
  peers_[peer].state = holds ? PeerState::kLeft : PeerState::kFree;
}

void Peers::remove(std::uint32_t peer) { peers_[peer].state = PeerState::kFree; }

std::vector<std::pair<std::uint32_t, ProcessId>> Peers::others(std::uint32_t me) const {
  std::vector<std::pair<std::uint32_t, ProcessId>> found;
  for (std::uint32_t i = 0; i < peers_.size(); ++i) {
    if (i != me && peers_[i].state != PeerState::kFree) found.emplace_back(i, peers_[i].id);
  }
  return found;
}

bool Peers::is_still(std::uint32_t peer, const ProcessId& id) const {
  return peers_[peer].state != PeerState::kFree && peers_[peer].id == id;
}

void Peers::bury(std::uint32_t peer, std::uint32_t lost) {
  // A peer that had done nothing yet might have become the receiver. A forked child that never used its copy counts for
  // nothing.
  if (has(peer, kHasReceived) || peers_[peer].roles == 0) header_.receiver_lost = header_.attached;
  if (peers_[peer].state == PeerState::kHere && peers_[peer].roles != kInherited) {
    header_.last_deaths[header_.deaths % header_.last_deaths.size()] = {
        .pid = peers_[peer].id.pid, .roles = peers_[peer].roles, .lost = lost};
    DATAPIPES_SHM_STEP("a death is written down");
    ++header_.deaths;
    DATAPIPES_SHM_STEP("a death is counted");
  }
  remove(peer);
}

bool Peers::others_may(std::uint32_t me, std::uint32_t role) const {
  for (std::uint32_t i = 0; i < peers_.size(); ++i) {
    const bool did_nothing = (peers_[i].roles & ~kInherited) == 0;
    const bool may_begin = role == kHasSent || peers_[i].number > header_.receiver_lost;
    const bool could = (did_nothing && may_begin) || (peers_[i].roles & role) != 0;
    if (i != me && peers_[i].state == PeerState::kHere && could) return true;
  }
  return false;
}

std::pair<std::string, std::vector<std::int32_t>> Peers::deaths_of_senders(std::uint64_t told) const {
  std::string text;
  std::vector<std::int32_t> pids;
  const auto kept = static_cast<std::uint64_t>(header_.last_deaths.size());
  for (auto d = header_.deaths > kept ? std::max(told, header_.deaths - kept) : told; d < header_.deaths; ++d) {
    const Death& death = header_.last_deaths[d % kept];
    if ((death.roles & kHasSent) == 0 && death.roles != 0) continue;
    if (!text.empty()) text += ", ";
    text += "process " + std::to_string(death.pid);
    if (death.lost > 0) text += " (while it wrote a message, which is lost)";
    pids.push_back(death.pid);
  }
  return {text, pids};
}

}  // namespace datapipes::shm
#endif
