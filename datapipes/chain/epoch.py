"""The context of one epoch of a chain: where the epoch begins, and the objects that its stages share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Any, NamedTuple

from datapipes.base.clock import StageClock
from datapipes.chain.calls import Calls
from datapipes.chain.numbering import Numbering


class Position(NamedTuple):
    """Where an epoch begins or goes on.

    Attributes:
        epoch: ordinal of the epoch.
        step: the first wanted step. Step 0 is the first minibatch of this rank, step 1 the second.
        node_state: the state of a stage that keeps its own order (FromNode).
        ahead: later steps that were already delivered, out of order.
        ended: whether the epoch was read to its end.
        after_end: whether `node_state` was saved when an epoch had ended. A stage that gets it begins its next epoch.
    """

    epoch: int
    step: int = 0
    node_state: Any = None
    ahead: tuple[int, ...] = ()
    ended: bool = False
    after_end: bool = False


@dataclass(frozen=True)
class EpochContext:
    """The objects that the stages of a running epoch share.

    The context holds neither a reader nor the last stage, so a thread with the context keeps neither of them alive.

    Attributes:
        calls: the Calls of the chain: names, counts and calls under way.
        position: where the epoch begins.
        stopped: set when the epoch has no reader any more; a thread that waits for a minibatch then stops waiting.
        drops: {label of a stage: how many minibatches it has dropped}; all chains of the epoch share this Counter.
    """

    calls: Calls
    position: Position
    stopped: threading.Event = field(default_factory=threading.Event)
    drops: Counter[str] = field(default_factory=Counter)

    def steps(self, num_steps: int) -> Iterable[int]:
        """Return the steps below `num_steps` that this rank still wants, in order."""
        ahead = frozenset(self.position.ahead)
        return filterfalse(ahead.__contains__, range(self.position.step, num_steps))

    def of_chain(self, numbering: Numbering, clock: StageClock) -> EpochContext:
        """Return the context for another chain that makes the minibatches of this epoch, such as a DataLoader's plan.

        Args:
            numbering: the names of the other chain's stages.
            clock: counts the calls of these stages.
        """
        return replace(self, calls=Calls(numbering, clock, self.calls.under_way))
