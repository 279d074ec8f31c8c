"""Check csrc/shm/PROTOCOL.md in every interleaving of the protocol, with a death at every step.

`Channel.check` and `Channel.check_end` say what is checked in each state. The second half breaks the protocol in one
place at a time and expects the search to find it: a search that cannot fail proves nothing.
"""

import pytest
from amounts import ranked
from shm_model import (
    FREE,
    HELD,
    LEFT,
    READABLE,
    Channel,
    Config,
    Message,
    Ops,
    Peer,
    Slot,
    Violation,
    World,
    explore,
)

# A message is (size, epoch). There are 4 units of data and 3 slots; 2 messages may wait. In a line with `mortal`, only
# these processes may die; another line covers the deaths of the rest. `make test` takes the six that cost least.
CONFIGS = {
    "the oldest is held": Config(senders=(((1, 0), (2, 0), (1, 0), (2, 0)),), receivers=(1,), deaths=1),
    "as many are held as there are slots": Config(senders=(((1, 0),) * 4,), receivers=(2,), slots=2),
    "closed before it let go": Config(senders=(((1, 0),),), receivers=(1, 0), leave_holding=True, ticks=True),
    "two deaths, a pair": Config(senders=(((1, 0), (2, 0)),), receivers=(1,), deaths=2),
    "nothing is sent": Config(senders=((),), receivers=(0, 0), marked=False, ticks=True),
    "an entry is used again": Config(senders=((),), receivers=(0,), late=(((1, 0),),), deaths=1, mortal=(0,)),
    "the turn, a death": Config(senders=(((4, 0),), ((1, 0),)), receivers=(0,), deaths=1, mortal=(0,)),
    "reset": Config(senders=(((1, 0), (1, 0), (1, 1)),), receivers=(0,), resetters=1, capacity=1),
    "two deaths": Config(senders=(((1, 0),),), receivers=(0, 1), deaths=2),
    "two senders": Config(senders=(((1, 0),), ((2, 0),)), receivers=(1,), deaths=1, mortal=(1, 2)),
    "two receivers": Config(senders=(((1, 0), (2, 0)),), receivers=(0, 1)),
    "a large one and small ones": Config(senders=(((4, 0),), ((1, 0), (1, 0))), receivers=(0,), slots=2),
    "it gives up": Config(senders=(((4, 0),), ((1, 0),)), receivers=(0,), impatient=(0,)),
    "reset, a death": Config(senders=(((1, 0), (1, 0)),), receivers=(0,), resetters=1, deaths=1, mortal=(2,)),
    "who sends shows late": Config(senders=(((1, 0),),), receivers=(0, 0), marked=False, ticks=True, deaths=1),
}


@pytest.mark.parametrize("config", ranked(CONFIGS.values(), 6), ids=CONFIGS)
def test_every_interleaving_keeps_what_the_page_promises(config: Config, record_property) -> None:
    report = explore(Channel(config))
    record_property("states", report.states)
    assert report.ends > 0


class Unreduced(Channel):
    """Also interleaves the steps that only the holder of the mutex can see."""

    def is_private(self, w: World, me: int) -> bool:
        return False


@pytest.mark.parametrize("deaths", ranked([0, 1], 1))
@pytest.mark.parametrize("senders", [(((1, 0), (2, 0)),), (((2, 0),), ((4, 0),))], ids=["one", "two"])
def test_running_the_holder_alone_leaves_no_end_out(senders, deaths: int) -> None:
    config = Config(senders=senders, receivers=(1,) if len(senders) == 1 else (), deaths=deaths)
    reduced, full = explore(Channel(config)), explore(Unreduced(config))
    assert full.ends == reduced.ends
    assert full.states > reduced.states


# --- The protocol with one mistake


class TagBeforeExtent(Channel):
    def reserve_ops(self, slot: int, begin: int, size: int, epoch: int, message: Message, me: int) -> Ops:
        extent, content, undrop, tag, *after = super().reserve_ops(slot, begin, size, epoch, message, me)
        return (tag, extent, content, undrop, *after)


class DroppedLeftFromBefore(Channel):
    def reserve_ops(self, slot: int, begin: int, size: int, epoch: int, message: Message, me: int) -> Ops:
        ops = super().reserve_ops(slot, begin, size, epoch, message, me)
        return tuple(op for op in ops if op[0] != "undrop")


class CountedAfterTheTag(Channel):
    def publish_ops(self, slot: int) -> Ops:
        number, count, *rest = super().publish_ops(slot)
        return (number, *rest, count)


class DeliveredAfterTheTag(Channel):
    def take_ops(self, slot: int, epoch: int, me: int) -> Ops:
        delivered, tag, *after = super().take_ops(slot, epoch, me)
        return (tag, delivered, *after)


class FlagBeforeWord(Channel):
    def wait_ops(self, word: str, why: str) -> Ops:
        see, flag, lock = super().wait_ops(word, why)
        return (flag, see, lock)


def before_sleep(ops: Ops, *late: tuple) -> Ops:
    return (*ops[:-1], *late, ops[-1]) if ops[-1][0] == "sleep" else ops


class FlagAfterLook(Channel):
    def wait_ops(self, word: str, why: str) -> Ops:
        see, _, lock = super().wait_ops(word, why)
        return (see, lock)

    def look_take(self, w: World, me: int) -> Ops:
        return before_sleep(super().look_take(w, me), ("flag", READABLE))


class WordAfterLook(Channel):
    def wait_ops(self, word: str, why: str) -> Ops:
        _, flag, lock = super().wait_ops(word, why)
        return (flag, lock)

    def look_take(self, w: World, me: int) -> Ops:
        return before_sleep(super().look_take(w, me), ("see",))


class ExchangeBeforePublish(Channel):
    def look_send(self, w: World, me: int) -> Ops:
        *ops, last = super().look_send(w, me)
        return (*ops, *self.wake_ops(READABLE), last) if last == ("lock", "publish") else (*ops, last)

    def look_publish(self, w: World, me: int) -> Ops:
        return tuple(op for op in super().look_publish(w, me) if op != ("exchange", READABLE))


class WakeWithoutAdding(Channel):
    def do_add(self, w: World, me: int, word: str) -> None:
        pass


class WakeOne(Channel):
    def do_wake(self, w: World, me: int, word: str) -> None:
        sleeper = next((i for i, p in enumerate(w.processes) if p.state == word), None)
        if sleeper is not None:
            w.processes[sleeper] = w.processes[sleeper]._replace(state="runs")
            self.settle(w, sleeper)


class TakeWakesNobody(Channel):
    def wake_taken_ops(self) -> Ops:
        return ()


class ResetWakesNobody(Channel):
    def look_reset(self, w: World, me: int) -> Ops:
        return tuple(op for op in super().look_reset(w, me) if op[0] != "exchange")


class GivesUpWithTheTurn(Channel):
    def look_give_up(self, w: World, me: int) -> Ops:
        return tuple(op for op in super().look_give_up(w, me) if op[0] != "turn")


class TurnIgnored(Channel):
    def may_reserve(self, w: World, entry: int) -> bool:
        return True


class ReleasedWhileHeld(Channel):
    def can_release(self, slot: Slot) -> bool:
        return slot.state == HELD


class DroppedBeforeRead(Channel):
    def let_go_ops(self, slot: int) -> Ops:
        read, *drop = super().let_go_ops(slot)
        return (*drop, read)


class KeepsEverything(Channel):
    def may_keep(self, w: World, slot: int) -> bool:
        return True


class KeepsEverySlot(Channel):
    def may_keep(self, w: World, slot: int) -> bool:
        return self.leaves_half(w, {i for i, s in enumerate(w.slots) if s.state == HELD} | {slot})


class FenceUnseenAtPublish(Channel):
    def look_publish(self, w: World, me: int) -> Ops:
        fence, w.fence = w.fence, 0
        ops = super().look_publish(w, me)
        w.fence = fence
        return ops


class NothingRebuilt(Channel):
    def rebuild_ops(self, w: World) -> Ops:
        return (("mend",),)


class ResetNotFinished(Channel):
    def rebuild_ops(self, w: World) -> Ops:
        return tuple(op for op in super().rebuild_ops(w) if op != ("rebuild", "stale"))


class TurnOfTheDead(Channel):
    def reap_ops(self, w: World, entry: int) -> Ops:
        return tuple(op for op in super().reap_ops(w, entry) if op[0] != "turn")


class EntryFreedFirst(Channel):
    def reap_ops(self, w: World, entry: int) -> Ops:
        *ops, record, free = super().reap_ops(w, entry)
        return (record, free, *ops)


class DeathRecordedLast(Channel):
    def reap_ops(self, w: World, entry: int) -> Ops:
        *ops, record, free = super().reap_ops(w, entry)
        return (*ops, free, record)


class WhoLeftIsReaped(Channel):
    def has_ended(self, w: World, peer: Peer) -> bool:
        return peer.state == LEFT or super().has_ended(w, peer)


class JudgedBeforeTheMutex(Channel):
    """Judges whether entry 0 has ended before it locks the mutex; another process may reap the entry in between."""

    def tick(self, w: World, me: int) -> None:
        super().tick(w, me)
        if self.has_ended(w, w.peers[0]):
            w.processes[me] = w.processes[me]._replace(todo=(("lock", "reap_first"),))

    def look_reap_first(self, w: World, me: int) -> Ops:
        return (*(self.reap_ops(w, 0) if w.peers[0].state != FREE else ()), ("look", "reap_more"))


class MarkedWhenItIsDone(Channel):
    def mark_ops(self, peer: Peer, entry: int, what: str) -> Ops:
        return ()

    def reserve_ops(self, slot: int, begin: int, size: int, epoch: int, message: Message, me: int) -> Ops:
        return (("mark", me, "sent"), *super().reserve_ops(slot, begin, size, epoch, message, me))

    def take_ops(self, slot: int, epoch: int, me: int) -> Ops:
        return (("mark", me, "received"), *super().take_ops(slot, epoch, me))


MUTANTS = [
    (TagBeforeExtent, CONFIGS["two deaths, a pair"], "no extent"),
    (DroppedLeftFromBefore, CONFIGS["the oldest is held"], "reads from"),
    (CountedAfterTheTag, CONFIGS["two senders"], "sequence numbers repeat"),
    (DeliveredAfterTheTag, CONFIGS["two deaths, a pair"], "epoch 0 was received"),
    (FlagBeforeWord, CONFIGS["two receivers"], "nobody wakes it"),
    (FlagAfterLook, CONFIGS["two receivers"], "nobody wakes it"),
    (WordAfterLook, CONFIGS["two receivers"], "nobody wakes it"),
    (ExchangeBeforePublish, CONFIGS["two receivers"], "nobody wakes it"),
    (WakeWithoutAdding, CONFIGS["two receivers"], "nobody wakes it"),
    (WakeOne, CONFIGS["two receivers"], "nobody wakes it"),
    (TakeWakesNobody, Config(senders=(((1, 0),) * 2,), receivers=(2,), capacity=1), "nobody wakes it"),
    (ResetWakesNobody, CONFIGS["reset"], "nobody wakes it"),
    (GivesUpWithTheTurn, CONFIGS["it gives up"], "."),
    (TurnIgnored, CONFIGS["a large one and small ones"], "overtakes"),
    (ReleasedWhileHeld, CONFIGS["the oldest is held"], "reads from"),
    (DroppedBeforeRead, CONFIGS["the oldest is held"], "reads from"),
    (KeepsEverything, Config(senders=(((1, 0), (2, 0)),), receivers=(2,)), "leave no gap of half"),
    (KeepsEverySlot, CONFIGS["as many are held as there are slots"], "nobody can go on"),
    (FenceUnseenAtPublish, CONFIGS["reset"], "though the fence is"),
    (NothingRebuilt, CONFIGS["two deaths, a pair"], "the tags say"),
    (ResetNotFinished, CONFIGS["reset, a death"], "though the fence is"),
    (TurnOfTheDead, CONFIGS["the turn, a death"], "."),
    (EntryFreedFirst, CONFIGS["two deaths"], "owned by nobody"),
    (DeathRecordedLast, CONFIGS["two deaths"], "deaths recorded"),
    (WhoLeftIsReaped, CONFIGS["closed before it let go"], "the entry of process"),
    (JudgedBeforeTheMutex, CONFIGS["an entry is used again"], "."),
    (MarkedWhenItIsDone, CONFIGS["nothing is sent"], "nobody can go on"),
]


@pytest.mark.parametrize(
    ("broken", "config", "what"), ranked(MUTANTS, 4), ids=[broken.__name__ for broken, _, _ in MUTANTS]
)
def test_the_search_finds_each_mistake(broken: type[Channel], config: Config, what: str) -> None:
    with pytest.raises(Violation, match=what):
        explore(broken(config))
