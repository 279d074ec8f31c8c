"""The protocol of csrc/shm/PROTOCOL.md as a small program, and a search through all its states.

`Channel` implements the page. Every decision under the mutex returns the stores that follow from it, in the order of
the page. The state of a process is the list of the stores it still has to make. One atomic action on shared memory is
one step. `explore` visits every interleaving of the steps of all processes, with a death between any two steps.

Four reductions keep the search small. None hides an error:
- The holder of the mutex runs without interleaving until it unlocks, and so does a sender while it writes its extent;
  both can still die. No other process may look at these stores. One that does is caught when it reads, writes or
  overlaps.
- A receiver reads a message in the same step in which it lets go of it. An earlier overwrite is still visible then.
- A word to wait on is kept as one bit per process: "changed since I read it".
- A FREE slot is filled with garbage (`dropped` included), so a process that relies on old content is caught.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

FREE, WRITING, READY, HELD = "FREE", "WRITING", "READY", "HELD"
RUNS, ENDED, DEAD = "runs", "ended", "dead"  # a sleeping process has the word it sleeps on instead
READABLE, WRITABLE = "readable", "writable"
HERE, LEFT = "here", "left"  # states of an entry in the table of peers, besides FREE
UNSENT, SENT, TAKEN, FENCED, REFUSED = "unsent", "sent", "taken", "fenced", "refused"  # the fates of a message

Op = tuple[Any, ...]  # a name and its arguments
Ops = tuple[Op, ...]
Message = tuple[int, int]  # the sending process, and the number of the message in that process


class Slot(NamedTuple):
    state: str
    owner: int | None
    begin: int | None
    size: int | None
    epoch: int | None
    message: Message | None
    sequence: int | None
    dropped: bool


EMPTY = Slot(FREE, None, None, None, None, None, None, True)


class Peer(NamedTuple):
    state: str
    process: int
    sent: bool
    received: bool


class Process(NamedTuple):
    state: str
    todo: Ops
    entry: int | None  # its index in the table of peers
    at: int = 0  # number of messages it has sent or given up
    held: tuple[int, ...] = ()
    told: int = 0  # number of deaths it was told
    fresh: bool = False  # the word has not changed since it was read
    leaving: bool = False


@dataclass(slots=True)
class World:
    """The shared state, the local state of every process, and what the checks remember (`fates`, `died`)."""

    slots: list[Slot]
    cells: list[Any]
    peers: list[Peer]
    processes: list[Process]
    fates: list[tuple[str, ...]]
    flags: dict[str, bool]
    by_address: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    busy: int = 0  # number of slots WRITING or READY
    next_sequence: int = 0
    fence: int = 0
    delivered: int = 0
    turn: int | None = None
    deaths: tuple[int, int] = (0, 0)  # recorded deaths that matter to senders, to receivers
    mutex: int | None = None
    dirty: bool = False  # a process died while it held the mutex
    died: int = 0

    def freeze(self) -> tuple[Any, ...]:
        return (
            tuple(self.slots),
            tuple(self.cells),
            tuple(self.peers),
            tuple(self.processes),
            tuple(self.fates),
            (self.flags[READABLE], self.flags[WRITABLE]),
            self.by_address,
            self.ready,
            self.free,
            self.busy,
            self.next_sequence,
            self.fence,
            self.delivered,
            self.turn,
            self.deaths,
            self.mutex,
            self.dirty,
            self.died,
        )


def thaw(state: tuple[Any, ...]) -> World:
    slots, cells, peers, processes, fates, (readable, writable), *others = state
    flags = {READABLE: readable, WRITABLE: writable}
    return World(list(slots), list(cells), list(peers), list(processes), list(fates), flags, *others)


class Violation(AssertionError):
    """A promise of the page is broken; the message ends with the steps that lead there."""


def require(truth: bool, what: str) -> None:
    if not truth:
        raise Violation(what)


@dataclass(frozen=True)
class Config:
    """The processes that take part, numbered in this order: senders, receivers, resetters, latecomers."""

    senders: tuple[tuple[tuple[int, int], ...], ...]  # the messages of each sender: (size, epoch)
    receivers: tuple[int, ...]  # how many messages each receiver keeps; it lets go of the newest first
    resetters: int = 0
    late: tuple[tuple[tuple[int, int], ...], ...] = ()  # senders that register once there is a free entry
    units: int = 4
    slots: int = 3
    capacity: int = 2
    deaths: int = 0
    mortal: tuple[int, ...] | None = None  # the processes that may die; None: all
    ticks: bool = False  # the 100 ms of a wait may pass at any time, also if nobody died
    impatient: tuple[int, ...] = ()  # senders that may give up while they wait
    leave_holding: bool = False  # receivers close before they let go
    marked: bool = True  # peers are known as senders and receivers from the start


@dataclass
class Channel:
    """The protocol. Methods that end in `_ops` return stores in order; a test overrides one to break the protocol."""

    config: Config
    messages: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    actions: dict[str, Callable[..., None]] = field(default_factory=dict)
    good: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        c = self.config
        first_late = len(c.senders) + len(c.receivers) + c.resetters
        self.messages = dict(enumerate(c.senders)) | dict(enumerate(c.late, first_late))
        self.keeps = dict(enumerate(c.receivers, len(c.senders)))
        self.resetters = range(first_late - c.resetters, first_late)
        self.late = range(first_late, first_late + len(c.late))
        names = [name for name in dir(self) if name.startswith("do_")]
        self.actions = {name.removeprefix("do_"): getattr(self, name) for name in names}

    def start(self) -> World:
        c, w = self.config, World([EMPTY] * self.config.slots, [None] * self.config.units, [], [], [], {})
        w.flags = {READABLE: False, WRITABLE: False}
        w.free = tuple(range(c.slots))
        for me in range(self.late.stop):
            w.fates.append((UNSENT,) * len(self.messages.get(me, ())))
            if me in self.late:
                w.processes.append(Process(RUNS, (("lock", "register"),), None))
                continue
            w.peers.append(Peer(HERE, me, c.marked and me in self.messages, c.marked and me in self.keeps))
            w.processes.append(Process(RUNS, (), me))
        for me in range(self.late.stop):
            self.settle(w, me)
        return w

    # --- What a process does next after the steps of its last decision

    def plan_ops(self, w: World, me: int) -> Ops:
        p = w.processes[me]
        if me in self.resetters:
            return (("lock", "reset"),)
        if me in self.messages:
            if p.at < len(self.messages[me]):
                return self.wait_ops(WRITABLE, "send")
            return (("lock", "leave"),)
        closed = p.leaving and w.peers[p.entry].state == LEFT
        if p.leaving and self.config.leave_holding and not closed:
            return (("lock", "leave"),)
        if len(p.held) > (0 if p.leaving else self.keeps[me]):
            return self.let_go_ops(p.held[-1])
        return (("lock", "leave"),) if p.leaving else self.wait_ops(READABLE, "take")

    # --- Section 3: waiting

    def wait_ops(self, word: str, why: str) -> Ops:
        return (("see",), ("flag", word), ("lock", why))  # then ("sleep", word) if it may not go on

    def wake_ops(self, *words: str) -> Ops:
        return tuple(("exchange", word) for word in words)

    # --- Section 2: the transitions, stores in the order of the table

    def reserve_ops(self, slot: int, begin: int, size: int, epoch: int, message: Message, me: int) -> Ops:
        before = (("extent", slot, begin, size), ("content", slot, epoch, message), ("undrop", slot))
        return (*before, ("tag", slot, WRITING, me), ("link", slot), ("unfree", slot), ("busy", 1))

    def publish_ops(self, slot: int) -> Ops:
        return (("number", slot), ("count",), ("tag", slot, READY, None), ("queue", slot))

    def take_ops(self, slot: int, epoch: int, me: int) -> Ops:
        return (("delivered", epoch + 1), ("tag", slot, HELD, me), ("unqueue", slot), ("busy", -1))

    def free_ops(self, w: World, slot: int) -> Ops:
        """The stores of abandon, release, drop and reap; only who may do them differs."""
        after: Ops = (("unlink", slot), ("refree", slot))
        if w.slots[slot].state == READY:
            after += (("unqueue", slot),)
        if w.slots[slot].state != HELD:
            after += (("busy", -1),)
        return (("tag", slot, FREE, None), *after)

    def let_go_ops(self, slot: int) -> Ops:
        return (("read", slot), ("drop", slot), *self.wake_ops(WRITABLE))

    def free_turn_ops(self, w: World, entry: int) -> Ops:
        return (("turn", None),) if w.turn == entry else ()

    def rebuild_ops(self, w: World) -> Ops:
        # Finish an interrupted reset: the tags alone do not say that a message is unwanted.
        what = ("stale", "by_address", "ready", "free", "busy")
        return (*(("rebuild", name) for name in what), ("mend",))

    def reap_ops(self, w: World, entry: int) -> Ops:
        slots = tuple(op for slot, s in enumerate(w.slots) if s.owner == entry for op in self.free_ops(w, slot))
        return (*slots, *self.free_turn_ops(w, entry), ("record", entry), ("entry", entry, FREE))

    # --- Rules of section 2

    def first_fit(self, w: World, size: int) -> int | None:
        """Return the offset of the first gap that is large enough, from the list by address."""
        end = 0
        for slot in w.by_address:
            begin, length = w.slots[slot].begin, w.slots[slot].size
            if begin - end >= size:
                return end
            end = begin + length
        return end if self.config.units - end >= size else None

    def leaves_half(self, w: World, slots: set[int]) -> bool:
        """Return whether these slots leave a gap of half of the data bytes."""
        end = largest = 0
        for begin, size in sorted((w.slots[slot].begin, w.slots[slot].size) for slot in slots):
            largest, end = max(largest, begin - end), begin + size
        return 2 * max(largest, self.config.units - end) >= self.config.units

    def may_keep(self, w: World, slot: int) -> bool:
        # Slots can run out like bytes: at least one must not be held.
        held = {i for i, s in enumerate(w.slots) if s.state == HELD and not s.dropped} | {slot}
        return self.leaves_half(w, held) and len(held) < self.config.slots

    def can_release(self, slot: Slot) -> bool:
        return slot.state == HELD and slot.dropped

    def may_reserve(self, w: World, entry: int) -> bool:
        return w.turn in (None, entry)

    def has_ended(self, w: World, peer: Peer) -> bool:
        return peer.state != FREE and w.processes[peer.process].state == DEAD

    def mark_ops(self, peer: Peer, entry: int, what: str) -> Ops:
        """Mark a peer as a sender or receiver at its first call, before it waits."""
        return () if getattr(peer, what) else (("mark", entry, what), ("look", "send" if what == "sent" else "take"))

    def others_can(self, w: World, entry: int, what: str, only: str) -> bool:
        """Return whether another peer is here that has sent (received), or done nothing yet."""
        others = (p for i, p in enumerate(w.peers) if i != entry and p.state == HERE)
        return any(getattr(p, what) or not getattr(p, only) for p in others if p.process not in self.resetters)

    # --- Decisions under the mutex

    def look_send(self, w: World, me: int) -> Ops:
        p = w.processes[me]
        for slot, s in enumerate(w.slots):
            if self.can_release(s):
                return (*self.free_ops(w, slot), ("look", "send"))
        if first := self.mark_ops(w.peers[p.entry], p.entry, "sent"):
            return first
        size, epoch = self.messages[me][p.at]
        freed = self.free_turn_ops(w, p.entry)
        give_up = (*freed, ("unlock",), *(self.wake_ops(WRITABLE) if freed else ()))
        if epoch < w.fence:
            return (("fate", p.at, FENCED), ("next",), *give_up)
        begin = self.first_fit(w, size)
        if self.may_reserve(w, p.entry) and begin is not None and w.free and w.busy < self.config.capacity:
            reserved = self.reserve_ops(w.free[0], begin, size, epoch, (me, p.at), p.entry)
            writes = tuple(("write", w.free[0], unit) for unit in range(size))
            passed_on = (*freed, *self.wake_ops(WRITABLE)) if freed else ()
            return (*reserved, ("unlock",), *passed_on, *writes, ("lock", "publish"))
        if p.told < w.deaths[0]:
            return (("hear",), ("fate", p.at, REFUSED), ("next",), *give_up)
        if not self.others_can(w, p.entry, "received", "sent"):
            return (("fate", p.at, REFUSED), ("next",), *give_up)
        turn = () if w.turn is not None else (("turn", p.entry),)
        return (*turn, ("unlock",), ("sleep", WRITABLE))

    def look_publish(self, w: World, me: int) -> Ops:
        p = w.processes[me]
        slots = [i for i, s in enumerate(w.slots) if (s.state, s.owner) == (WRITING, p.entry)]
        require(len(slots) == 1, f"process {me} would publish {slots}")
        slot = slots[0]
        if w.slots[slot].epoch < w.fence:
            dropped = (("fate", p.at, FENCED), ("next",), *self.free_ops(w, slot))
            return (*dropped, ("unlock",), *self.wake_ops(WRITABLE))
        return (("next",), *self.publish_ops(slot), ("unlock",), *self.wake_ops(READABLE))

    def look_give_up(self, w: World, me: int) -> Ops:
        p = w.processes[me]
        freed = self.free_turn_ops(w, p.entry)
        ended = (("fate", p.at, REFUSED), ("next",), *freed, ("unlock",))
        return (*ended, *self.wake_ops(WRITABLE)) if freed else ended

    def look_take(self, w: World, me: int) -> Ops:
        p = w.processes[me]
        if first := self.mark_ops(w.peers[p.entry], p.entry, "received"):
            return first
        if w.ready:
            slot = w.ready[0]
            taken = (*self.take_ops(slot, w.slots[slot].epoch, p.entry), ("unlock",), *self.wake_taken_ops())
            return (*taken, ("keep", slot)) if self.may_keep(w, slot) else (*taken, *self.let_go_ops(slot))
        if p.told < w.deaths[1]:
            return (("hear",), ("unlock",))
        if not self.others_can(w, p.entry, "sent", "received"):
            return (("close",), ("unlock",))
        return (("unlock",), ("sleep", READABLE))

    def wake_taken_ops(self) -> Ops:
        return self.wake_ops(WRITABLE)  # frees no bytes, but one message of `capacity`

    def look_reset(self, w: World, me: int) -> Ops:
        drops = (op for slot in w.ready if w.slots[slot].epoch < w.delivered for op in self.free_ops(w, slot))
        fence = ("fence", max(w.fence, w.delivered))
        return (fence, *drops, ("unlock",), *self.wake_ops(WRITABLE), ("end",))

    def look_leave(self, w: World, me: int) -> Ops:
        # Only processes that wait for the other side wait for this one, so one word is enough.
        word = READABLE if me in self.messages else WRITABLE
        left = (("entry", w.processes[me].entry, LEFT), ("unlock",), *self.wake_ops(word))
        return left if w.processes[me].held else (*left, ("end",))

    def look_reap(self, w: World, me: int) -> Ops:
        """Judge under the mutex whether the process has ended: the entry may belong to another one by now."""
        for entry, peer in enumerate(w.peers):
            if self.has_ended(w, peer):
                return (*self.reap_ops(w, entry), ("look", "reap_more"))
        return (("unlock",),)

    def look_reap_more(self, w: World, me: int) -> Ops:
        ops = self.look_reap(w, me)
        return (*ops, *self.wake_ops(READABLE, WRITABLE)) if ops == (("unlock",),) else ops

    def look_register(self, w: World, me: int) -> Ops:
        """If the table is full, free the entry of a process that has ended first."""
        for entry, peer in enumerate(w.peers):
            if peer.state == FREE:
                return (("identity", entry), ("entry", entry, HERE), ("unlock",))
        ended = next(entry for entry, peer in enumerate(w.peers) if self.has_ended(w, peer))
        return (*self.reap_ops(w, ended), ("look", "register"))

    # --- The steps: without the mutex

    def do_see(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(fresh=True)

    def do_flag(self, w: World, me: int, word: str) -> None:
        w.flags[word] = True

    def do_lock(self, w: World, me: int, why: str) -> None:
        """Lock and look in one step: from here on others can change only `dropped`, which could have come before."""
        w.mutex = me
        if w.dirty:
            self.prepend(w, me, (*self.rebuild_ops(w), ("look", why)))
        else:
            self.do_look(w, me, why)

    def do_look(self, w: World, me: int, why: str) -> None:
        self.prepend(w, me, getattr(self, "look_" + why)(w, me))

    def do_unlock(self, w: World, me: int) -> None:
        require(w.mutex == me, f"process {me} unlocks a mutex that {w.mutex} holds")
        w.mutex = None

    def do_sleep(self, w: World, me: int, word: str) -> None:
        if w.processes[me].fresh:
            w.processes[me] = w.processes[me]._replace(state=word, fresh=False)

    def do_exchange(self, w: World, me: int, word: str) -> None:
        if w.flags[word]:
            w.flags[word] = False
            self.prepend(w, me, (("add", word), ("wake", word)))

    def do_add(self, w: World, me: int, word: str) -> None:
        for i, p in enumerate(w.processes):
            if p.fresh and (i in self.messages) == (word == WRITABLE):
                w.processes[i] = p._replace(fresh=False)

    def do_wake(self, w: World, me: int, word: str) -> None:
        for i, p in enumerate(w.processes):
            if p.state == word:
                w.processes[i] = p._replace(state=RUNS)
                self.settle(w, i)

    def do_write(self, w: World, me: int, slot: int, unit: int) -> None:
        s = w.slots[slot]
        require(s.state == WRITING and s.owner == w.processes[me].entry, f"process {me} writes into {s}")
        w.cells[s.begin + unit] = (s.message, unit)

    def do_read(self, w: World, me: int, slot: int) -> None:
        s = w.slots[slot]
        require(s.state == HELD and s.owner == w.processes[me].entry, f"process {me} reads from {s}")
        sender, number = s.message
        found = w.cells[s.begin : s.begin + s.size]
        whole = [(s.message, unit) for unit in range(self.messages[sender][number][0])]
        require(found == whole, f"process {me} reads {found} instead of {whole}")

    def do_drop(self, w: World, me: int, slot: int) -> None:
        w.slots[slot] = w.slots[slot]._replace(dropped=True)
        held = tuple(i for i in w.processes[me].held if i != slot)
        w.processes[me] = w.processes[me]._replace(held=held)

    # --- The steps: with the mutex

    def do_extent(self, w: World, me: int, slot: int, begin: int, size: int) -> None:
        w.slots[slot] = w.slots[slot]._replace(begin=begin, size=size)

    def do_content(self, w: World, me: int, slot: int, epoch: int, message: Message) -> None:
        w.slots[slot] = w.slots[slot]._replace(epoch=epoch, message=message)

    def do_undrop(self, w: World, me: int, slot: int) -> None:
        w.slots[slot] = w.slots[slot]._replace(dropped=False)

    def do_number(self, w: World, me: int, slot: int) -> None:
        w.slots[slot] = w.slots[slot]._replace(sequence=w.next_sequence)

    def do_count(self, w: World, me: int) -> None:
        w.next_sequence += 1

    def do_tag(self, w: World, me: int, slot: int, state: str, owner: int | None) -> None:
        """Make the store of a transition's tag; record and check the fate of the message."""
        s = w.slots[slot]
        if state == FREE:
            if s.state == READY:
                require(s.epoch < w.fence, f"{s} is dropped though it is wanted")
                self.note(w, s.message, FENCED)
            if s.begin is not None:
                w.cells[s.begin : s.begin + s.size] = [None] * s.size
            w.slots[slot] = EMPTY
            return
        if state == WRITING:
            require(w.turn in (None, owner), f"{owner} overtakes {w.turn}, whose turn it is")
        elif state == READY:
            self.note(w, s.message, SENT)
        else:
            sender, number = s.message
            require(s.epoch >= w.fence, f"{s} is received though the fence is {w.fence}")
            require(SENT not in w.fates[sender][:number], f"{s} is received before an earlier one of its sender")
            self.note(w, s.message, TAKEN)
            s = s._replace(sequence=None)
        w.slots[slot] = s._replace(state=state, owner=owner)

    def do_link(self, w: World, me: int, slot: int) -> None:
        w.by_address = tuple(sorted((*w.by_address, slot), key=lambda i: w.slots[i].begin))

    def do_unlink(self, w: World, me: int, slot: int) -> None:
        w.by_address = tuple(i for i in w.by_address if i != slot)

    def do_unfree(self, w: World, me: int, slot: int) -> None:
        w.free = tuple(i for i in w.free if i != slot)

    def do_refree(self, w: World, me: int, slot: int) -> None:
        w.free = tuple(sorted((*w.free, slot)))

    def do_queue(self, w: World, me: int, slot: int) -> None:
        w.ready = (*w.ready, slot)

    def do_unqueue(self, w: World, me: int, slot: int) -> None:
        w.ready = tuple(i for i in w.ready if i != slot)

    def do_busy(self, w: World, me: int, change: int) -> None:
        w.busy += change

    def do_turn(self, w: World, me: int, entry: int | None) -> None:
        w.turn = entry

    def do_fence(self, w: World, me: int, epoch: int) -> None:
        w.fence = epoch

    def do_delivered(self, w: World, me: int, epoch: int) -> None:
        w.delivered = max(w.delivered, epoch)

    def do_mark(self, w: World, me: int, entry: int, what: str) -> None:
        w.peers[entry] = w.peers[entry]._replace(**{what: True})

    def do_record(self, w: World, me: int, entry: int) -> None:
        peer = w.peers[entry]
        for_senders, for_receivers = peer.received or not peer.sent, peer.sent or not peer.received
        w.deaths = (w.deaths[0] + for_senders, w.deaths[1] + for_receivers)

    def do_identity(self, w: World, me: int, entry: int) -> None:
        w.peers[entry] = Peer(FREE, me, self.config.marked, False)
        w.processes[me] = w.processes[me]._replace(entry=entry, told=w.deaths[0])

    def do_entry(self, w: World, me: int, entry: int, state: str) -> None:
        w.peers[entry] = w.peers[entry]._replace(state=state)

    def do_rebuild(self, w: World, me: int, what: str) -> None:
        if what == "stale":
            for slot, s in enumerate(w.slots):
                if s.state == READY and s.epoch < w.fence:
                    self.do_tag(w, me, slot, FREE, None)
        else:
            setattr(w, what, self.derived(w)[what])

    def do_mend(self, w: World, me: int) -> None:
        w.dirty = False

    # --- Steps that no other process can see: made together with the step before

    def do_next(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(at=w.processes[me].at + 1)

    def do_fate(self, w: World, me: int, number: int, fate: str) -> None:
        self.note(w, (me, number), fate)

    def do_hear(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(told=w.processes[me].told + 1)

    def do_keep(self, w: World, me: int, slot: int) -> None:
        w.processes[me] = w.processes[me]._replace(held=(*w.processes[me].held, slot))

    def do_close(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(leaving=True)

    def do_end(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(state=ENDED, todo=(), fresh=False)

    # --- Running it

    def derived(self, w: World) -> dict[str, Any]:
        """Return the state that can be computed from the tags."""
        used = [i for i, s in enumerate(w.slots) if s.state != FREE]
        ready = [i for i in used if w.slots[i].state == READY]
        return {
            "by_address": tuple(sorted(used, key=lambda i: w.slots[i].begin)),
            "ready": tuple(sorted(ready, key=lambda i: w.slots[i].sequence)),
            "free": tuple(i for i in range(len(w.slots)) if i not in used),
            "busy": sum(w.slots[i].state in (WRITING, READY) for i in used),
        }

    def note(self, w: World, message: Message, fate: str) -> None:
        sender, number = message
        fates = w.fates[sender]
        allowed = {SENT: (UNSENT,), TAKEN: (SENT,), FENCED: (UNSENT, SENT), REFUSED: (UNSENT,)}[fate]
        require(fates[number] in allowed, f"message {message} is {fate} after it was {fates[number]}")
        w.fates[sender] = (*fates[:number], fate, *fates[number + 1 :])

    def prepend(self, w: World, me: int, ops: Ops) -> None:
        w.processes[me] = w.processes[me]._replace(todo=ops + w.processes[me].todo)

    def settle(self, w: World, me: int) -> None:
        """Make the steps that no other process can see, and decide what comes next."""
        while (p := w.processes[me]).state == RUNS:
            if not p.todo:
                w.processes[me] = p._replace(todo=self.plan_ops(w, me))
            elif p.todo[0][0] in UNSEEN:
                self.do_first(w, me)
            else:
                return

    def do_first(self, w: World, me: int) -> str:
        """Make the first step to do, and return its name."""
        p = w.processes[me]
        name, *arguments = p.todo[0]
        w.processes[me] = p._replace(todo=p.todo[1:])
        self.actions[name](w, me, *arguments)
        return str(name)

    def step(self, w: World, me: int) -> None:
        name = self.do_first(w, me)
        self.settle(w, me)
        while name == "read" or (self.is_private(w, me) and not self.may_die(w, me)):
            name = self.do_first(w, me)
            self.settle(w, me)

    def is_private(self, w: World, me: int) -> bool:
        """Return whether no step of another process can interfere with its next step."""
        p = w.processes[me]
        if p.state != RUNS:
            return False
        name, *arguments = p.todo[0]
        if name == "write":
            s = w.slots[arguments[0]]
            return s.state == WRITING and s.owner == p.entry
        return w.mutex == me and name in GUARDED

    def may_die(self, w: World, me: int) -> bool:
        return w.died < self.config.deaths and (self.config.mortal is None or me in self.config.mortal)

    def die(self, w: World, me: int) -> None:
        w.processes[me] = Process(DEAD, (), w.processes[me].entry)
        w.died += 1
        if w.mutex == me:
            w.mutex, w.dirty = None, True

    def tick(self, w: World, me: int) -> None:
        """After the 100 ms: check who lives, then wait again."""
        todo = (("lock", "reap"),) if any(self.has_ended(w, peer) for peer in w.peers) else ()
        w.processes[me] = w.processes[me]._replace(state=RUNS, todo=todo)
        self.settle(w, me)

    def give_up(self, w: World, me: int) -> None:
        w.processes[me] = w.processes[me]._replace(state=RUNS, todo=(("lock", "give_up"),))

    def is_enabled(self, w: World, me: int) -> bool:
        p = w.processes[me]
        if p.state != RUNS:
            return False
        if p.todo[0] == ("lock", "register") and not any(q.state == FREE or self.has_ended(w, q) for q in w.peers):
            return False
        return p.todo[0][0] != "lock" or w.mutex is None

    def moves(self, w: World) -> Iterator[tuple[str, int, Callable[[World, int], None]]]:
        """Return everything that can happen now: its kind, to which process, and how."""
        everybody = range(len(w.processes))
        alone = next((me for me in everybody if self.is_private(w, me)), None)
        for me in everybody if alone is None else (alone,):
            p = w.processes[me]
            if p.state in (ENDED, DEAD):
                continue
            if self.is_enabled(w, me):
                yield "step", me, self.step
            elif p.state != RUNS:
                if w.died or self.config.ticks:
                    yield "tick", me, self.tick
                if me in self.config.impatient:
                    yield "step", me, self.give_up
            if self.may_die(w, me):
                yield "death", me, self.die

    # --- What must hold

    def has_finished(self, w: World) -> bool:
        waits = (("lock", "register"),)
        return all(p.state in (ENDED, DEAD) or p.todo == waits for p in w.processes) and w.mutex is None

    def check(self, w: World) -> None:
        """Check every state. The shared part is not checked again if only local states changed."""
        kept = frozenset(slot for p in w.processes for slot in p.held)
        at_rest = w.mutex is None and not w.dirty
        derived = (w.by_address, w.ready, w.free, w.busy) if at_rest else None
        shared = (tuple(w.slots), tuple(w.peers), kept, derived)
        if shared not in self.good:
            self.check_slots(w, kept, at_rest)
            if at_rest:
                for name, value in self.derived(w).items():
                    require(getattr(w, name) == value, f"{name} is {getattr(w, name)}; the tags say {value}")
            self.good.add(shared)
        if at_rest and (tuple(w.fates), w.delivered) not in self.good:
            for sender, fates in enumerate(w.fates):
                for fate, (_, epoch) in zip(fates, self.messages.get(sender, ()), strict=True):
                    require(fate != TAKEN or w.delivered > epoch, f"epoch {epoch} was received, not {w.delivered}")
            self.good.add((tuple(w.fates), w.delivered))
        if at_rest and w.died and self.config.marked:
            gone = [i for i, p in enumerate(w.processes) if p.state == DEAD and w.peers[p.entry].process != i]
            gone += [p.process for p in w.peers if p.state == FREE]
            require(sum(i in self.keeps for i in gone) <= w.deaths[0], f"deaths recorded {w.deaths}, gone {gone}")
            require(sum(i in self.messages for i in gone) <= w.deaths[1], f"deaths recorded {w.deaths}, gone {gone}")
        if at_rest:
            self.check_entries(w)
        if at_rest and not w.died and not self.config.ticks:
            self.check_sleepers(w)

    def check_slots(self, w: World, kept: frozenset[int], at_rest: bool) -> None:
        used = [s for s in w.slots if s.state != FREE]
        for s in used:
            require(s.begin is not None and 0 <= s.begin <= s.begin + s.size <= self.config.units, f"no extent: {s}")
            require((s.owner is None) == (s.state == READY), f"wrong owner: {s}")
            require(s.owner is None or not at_rest or w.peers[s.owner].state != FREE, f"owned by nobody: {s}")
        ends = sorted((s.begin, s.begin + s.size) for s in used)
        require(all(a[1] <= b[0] for a, b in pairwise(ends)), f"extents overlap: {ends}")
        busy = sum(s.state != HELD for s in used)
        require(busy <= self.config.capacity, f"{busy} messages wait; capacity {self.config.capacity}")
        held = {slot for slot in kept if w.slots[slot].state == HELD}  # reading a message checks that its slot is held
        require(self.leaves_half(w, held), f"{kept} are held and leave no gap of half")
        numbers = [s.sequence for s in used if s.state == READY]
        require(len(set(numbers)) == len(numbers), f"sequence numbers repeat: {numbers}")

    def check_entries(self, w: World) -> None:
        """Check what a process takes for granted (section 8): it calls the opposite garbage."""
        for me, p in enumerate(w.processes):
            if p.entry is not None and p.state not in (ENDED, DEAD):
                peer = w.peers[p.entry]
                require(peer.state != FREE and peer.process == me, f"the entry of process {me} is {peer}")
        require(w.turn is None or w.peers[w.turn].state != FREE, f"{w.turn} has the turn and is no peer")

    def check_sleepers(self, w: World) -> None:
        """Check that each sleeper cannot go on or is about to be woken: without deaths no tick is needed."""
        for me, p in enumerate(w.processes):
            if p.state not in (READABLE, WRITABLE):
                continue
            if any((name, p.state) in other.todo for other in w.processes for name in WAKING):
                continue
            ops = self.look_send(w, me) if p.state == WRITABLE else self.look_take(w, me)
            require(
                ops[0] == ("unlock",) and ops[-1][0] == "sleep",
                f"process {me} could go on, sleeps, and nobody wakes it",
            )

    def check_end(self, w: World) -> None:
        """Check the state when no process has anything left to do: a newcomer must find everything in order."""
        receives = any(w.processes[me].state == ENDED for me in self.keeps)
        for me, fates in enumerate(w.fates):
            if w.processes[me].state == ENDED:
                require(UNSENT not in fates, f"process {me} ended with messages unsent: {fates}")
            if receives and not self.late:
                require(SENT not in fates, f"a message of process {me} was never received: {fates}")
        me = len(w.processes)
        w.processes.append(Process(RUNS, (("lock", "reap"),), None))
        while w.processes[me].todo:
            self.do_first(w, me)
        for slot, s in enumerate(w.slots):
            unread = s.state == READY and (not receives or bool(self.late))
            require(s.state == FREE or unread or self.can_release(s), f"slot {slot} is lost: {s}")
        require(w.turn is None, f"the turn is lost: {w.turn}")


UNSEEN = {"next", "fate", "hear", "keep", "close", "end"}
WAKING = ("exchange", "add", "wake")
OPEN = {"see", "flag", "lock", "look", "sleep", *WAKING, "write", "read", "drop"}  # steps that others can see
GUARDED = {name.removeprefix("do_") for name in dir(Channel) if name.startswith("do_")} - OPEN - UNSEEN


@dataclass
class Report:
    states: int
    steps: int
    ends: int


def explore(channel: Channel, *, shortest: bool = False) -> Report:
    """Visit every state and return how many there are, or raise Violation with the steps that lead to it.

    Also check that the end can be reached from every state without a further death, and that only ticks form circles.
    With `shortest` the search is breadth first: it takes longer to find an error, but with the fewest steps.
    """
    collects = gc.isenabled()
    gc.disable()  # the search makes no garbage, and looking for it doubles the time
    try:
        return visit(channel, shortest)
    finally:
        if collects:
            gc.enable()


def visit(channel: Channel, shortest: bool) -> Report:
    first = channel.start().freeze()
    number = {first: 0}
    came: list[tuple[int, Any]] = [(0, "")]
    edges: list[tuple[str, int, int]] = []
    ends: list[int] = []
    waiting = deque([(first, 0)])

    def fail(what: object, at: int, last: Any = None) -> None:
        trace = [last] if last else []
        while at:
            at, label = came[at]
            trace.append(label)
        raise Violation("\n".join([str(what), *(" ".join(map(str, label)) for label in reversed(trace))]))

    while waiting:
        state, here = waiting.popleft() if shortest else waiting.pop()
        w = thaw(state)
        try:
            channel.check(w)
            if channel.has_finished(w):
                ends.append(here)
                channel.check_end(thaw(state))
        except Violation as violation:
            fail(violation, here)
        for kind, me, move in channel.moves(w):
            label = (me, *w.processes[me].todo[0]) if kind == "step" and w.processes[me].todo else (me, kind)
            after = thaw(state)
            try:
                move(after, me)
            except Violation as violation:
                fail(violation, here, label)
            reached = after.freeze()
            there = number.setdefault(reached, len(number))
            if there == len(came):
                came.append((here, label))
                waiting.append((reached, there))
            edges.append((kind, here, there))

    stuck = unable_to_reach(len(number), ends, [(a, b) for kind, a, b in edges if kind != "death"])
    if stuck:
        going = {a for _, a, _ in edges}
        fail("nobody can go on, or only in circles", next((state for state in stuck if state not in going), stuck[-1]))
    circle = on_a_circle(len(number), [(a, b) for kind, a, b in edges if kind != "tick"])
    if circle is not None:
        fail("goes in circles without waiting", circle)
    return Report(len(number), len(edges), len(ends))


def unable_to_reach(count: int, ends: list[int], edges: list[tuple[int, int]]) -> list[int]:
    """Return the states from which no end can be reached."""
    before: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
    able, todo = set(ends), list(ends)
    while todo:
        for a in before[todo.pop()]:
            if a not in able:
                able.add(a)
                todo.append(a)
    return [state for state in range(count) if state not in able]


def on_a_circle(count: int, edges: list[tuple[int, int]]) -> int | None:
    """Return a state that can be reached from a circle, or None."""
    after: list[list[int]] = [[] for _ in range(count)]
    incoming = [0] * count
    for a, b in edges:
        after[a].append(b)
        incoming[b] += 1
    todo = [state for state in range(count) if not incoming[state]]
    while todo:
        for b in after[todo.pop()]:
            incoming[b] -= 1
            if not incoming[b]:
                todo.append(b)
    return next((state for state in range(count) if incoming[state]), None)
