#include "shm/peers.h"

#include <algorithm>
#include <stdexcept>

#include "shm/step.h"

namespace datapipes::shm {

PeerState Peers::state_of(const Peer& peer) const {
  const auto state = peer.state.load();
  if (state > PeerState::kLeft) damaged(header_, "the table of peers");
  return state;
}

bool Peers::full() const {
  return std::ranges::none_of(peers_, [&](const Peer& peer) { return state_of(peer) == PeerState::kFree; });
}

std::uint32_t Peers::add(const ProcessId& id, std::uint32_t roles) {
  const auto found = std::ranges::find_if(peers_, [&](const Peer& peer) { return state_of(peer) == PeerState::kFree; });
  if (found == peers_.end()) {
    throw std::runtime_error(
        "ShmChannel: " + std::to_string(peers_.size()) +
        " processes have attached this channel, the most allowed. Close it in processes that do not use it.");
  }
  found->id.set(id);
  found->roles.set(roles);
  header_.attached.add(1);
  found->number.set(header_.attached.get());
  DATAPIPES_SHM_STEP("a peer comes to its state");
  found->state = PeerState::kHere;
  return static_cast<std::uint32_t>(found - peers_.begin());
}

void Peers::mark(std::uint32_t peer, std::int32_t pid, std::uint32_t role) {
  Peer& mine = peers_[peer];
  if (state_of(mine) == PeerState::kFree || mine.id.get().pid != pid)
    damaged(header_, "this process's entry in the table of peers");
  mine.roles.set(mine.roles.get() | role);
}

void Peers::leave(std::uint32_t peer, bool holds, bool by_exit) {
  header_.exits.add(by_exit);
  if (has(peer, kHasReceived)) header_.receiver_lost.set(header_.attached.get());
  peers_[peer].state = holds ? PeerState::kLeft : PeerState::kFree;
}

void Peers::remove(std::uint32_t peer) { peers_[peer].state = PeerState::kFree; }

std::vector<std::pair<std::uint32_t, ProcessId>> Peers::others(std::uint32_t me) const {
  std::vector<std::pair<std::uint32_t, ProcessId>> found;
  for (std::uint32_t i = 0; i < peers_.size(); ++i) {
    if (i != me && state_of(peers_[i]) != PeerState::kFree) found.emplace_back(i, peers_[i].id.get());
  }
  return found;
}

bool Peers::is_still(std::uint32_t peer, const ProcessId& id) const {
  return state_of(peers_[peer]) != PeerState::kFree && peers_[peer].id.get() == id;
}

void Peers::bury(std::uint32_t peer, std::uint32_t lost) {
  const auto roles = peers_[peer].roles.get();
  // A peer that had done nothing yet might have become the receiver. A forked child that never used its copy does not count.
  if ((roles & kHasReceived) != 0 || roles == 0) header_.receiver_lost.set(header_.attached.get());
  if (state_of(peers_[peer]) == PeerState::kHere && roles != kInherited) {
    const auto number = header_.deaths.get();
    header_.last_deaths[number % header_.last_deaths.size()].set(
        {.pid = peers_[peer].id.get().pid, .roles = roles, .lost = lost});
    DATAPIPES_SHM_STEP("a death is written down");
    header_.deaths.set(number + 1);
    DATAPIPES_SHM_STEP("a death is counted");
  }
  remove(peer);
}

bool Peers::others_may(std::uint32_t me, std::uint32_t role) const {
  const auto lost = header_.receiver_lost.get();
  for (std::uint32_t i = 0; i < peers_.size(); ++i) {
    if (i == me || state_of(peers_[i]) != PeerState::kHere) continue;
    const auto roles = peers_[i].roles.get();
    const bool may_begin = role == kHasSent || peers_[i].number.get() > lost;
    if (((roles & ~kInherited) == 0 && may_begin) || (roles & role) != 0) return true;
  }
  return false;
}

std::pair<std::string, std::vector<std::int32_t>> Peers::deaths_of_senders(std::uint64_t told, std::uint64_t deaths) const {
  std::string text;
  std::vector<std::int32_t> pids;
  const auto kept = static_cast<std::uint64_t>(header_.last_deaths.size());
  for (auto d = deaths > kept ? std::max(told, deaths - kept) : told; d < deaths; ++d) {
    const auto death = header_.last_deaths[d % kept].get();
    if ((death.roles & kHasSent) == 0 && death.roles != 0) continue;
    if (!text.empty()) text += ", ";
    text += "process " + std::to_string(death.pid);
    if (death.lost > 0) text += " (while it wrote a message, which is lost)";
    pids.push_back(death.pid);
  }
  return {text, pids};
}

}  // namespace datapipes::shm
