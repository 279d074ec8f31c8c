"""What one epoch of a chain is made with: where it begins, and what its stages share."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from datapipes.chain.calls import Calls


class Position(NamedTuple):
    """Where an epoch begins or goes on.

    Attributes:
        epoch: its number.
        step: the first step that is wanted. A step is the number of a minibatch among those of this rank.
        node_state: the state of a stage that keeps its own order (FromNode).
        ahead: later steps that were already delivered, out of order.
        ended: whether the epoch was read to its end.
        after_end: whether `node_state` was saved at the end of the epoch before, so that the node's next one begins.
    """

    epoch: int
    step: int = 0
    node_state: Any = None
    ahead: tuple[int, ...] = ()
    ended: bool = False
    after_end: bool = False


class EpochContext:
    """What the stages of a running epoch share.

    It holds neither a reader nor the last stage, so a thread that keeps the context keeps neither of them alive.

    Attributes:
        calls: the calls of the chain's stages, under their labels.
        epoch: the number of the epoch.
        start: the first step of this rank that is wanted.
        ahead: later steps that were already delivered out of order; skip them.
        node_state: the state at which a FromNode goes on.
        after_end: whether that state was saved at the end of the epoch before.
        stopped: set when the epoch has no reader any more; a thread that waits for a minibatch then gives up.
        drops: how many minibatches stages have dropped, by the stage's label; one for all chains of the epoch.
        waiting_for: returns a sentence on what the epoch waits for at the moment; "" if it waits for nothing.
    """

    def __init__(self, calls: Calls, position: Position) -> None:
        self.calls = calls
        self.epoch = position.epoch
        self.start = position.step
        self.ahead = frozenset(position.ahead)
        self.node_state = position.node_state
        self.after_end = position.after_end
        self.stopped = threading.Event()
        self.drops: Counter[str] = Counter()
        self.waiting_for: Callable[[], str] = str

    def steps(self, num_steps: int) -> Iterable[int]:
        """Return the steps of this rank that are still wanted, in order."""
        ahead = self.ahead  # a generator that held the context would close a reference cycle through waiting_for
        return (step for step in range(self.start, num_steps) if step not in ahead)

    def whereabouts(self) -> str:
        """Return a sentence on what the epoch waits for or works on; "" if nothing is known."""
        return self.waiting_for() or self.calls.whereabouts()

    def of_chain(self, calls: Calls) -> EpochContext:
        """Return a context of this epoch for another chain that makes its minibatches, such as a DataLoader's plan."""
        inner = copy.copy(self)
        inner.calls = calls
        self.waiting_for = inner.whereabouts
        return inner
