"""Facts: what is known of a loader, that is the stages of its plan, where they run, and their counts so far.

`stats()` returns the Facts as a dict, a trace contains them, a report shows them, and bottleneck.py finds the
bottleneck from them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Annotated, NamedTuple, TypeVar

from datapipes.base.checks import one_line, shown
from datapipes.base.clock import CallRecord
from datapipes.base.records import whole
from datapipes.chain.explain import lanes
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import StageBase, is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.loader.workers.workers import Workers

CONSUMER = "consumer"
NO_STAGES = ("epochs", "channel", "workers", "features", "padding")  # rows that do not count calls

Counts = dict[str, float]
AnyFacts = TypeVar("AnyFacts", bound="Facts")


@dataclass(frozen=True)
class StageFacts:
    """What is known of one stage of a loader's plan.

    Attributes:
        label: the name under which the stage's calls are counted, such as "2 fetch_feature".
        text: its class and arguments.
        does: "seeds", "sampling", "gather", "copy" or "loader"; "transform" for a user's function or class; "" for any
            other stage.
        awaits: whether its calls wait for something elsewhere, such as servers. Several calls are then in flight at
            once.
    """

    label: str
    text: str
    does: str
    awaits: bool

    @classmethod
    def of(cls, stage: StageBase, label: str) -> StageFacts:
        """Return the StageFacts of a stage whose calls are counted under `label`."""
        has_function = isinstance(stage, MiniBatchTransformer) and stage.fn is not None
        is_theirs = has_function or not type(stage).__module__.startswith("datapipes.")
        does = stage._does or ("transform" if is_theirs else "")
        return cls(label, one_line(shown(stage)), does, is_async(stage))


@dataclass(frozen=True)
class LaneFacts:
    """Stages that run one after the other, in the same threads or processes.

    Attributes:
        workers: number of threads or processes of the lane.
        pool: "process" or "thread" if `num_workers` sets their number; "" otherwise.
        waiting: the name under which the time is counted that a reader waits for this lane's minibatches; "" for the
            consumer's lane.
    """

    title: str
    workers: Annotated[int, whole(1)]
    pool: str
    waiting: str
    stages: tuple[StageFacts, ...]


class Sample(NamedTuple):
    """Resident memory at time `at` (time.monotonic()): the bytes of the caller's process, and of all workers together.

    Pages that processes share are counted once for each process.
    """

    at: float
    caller: float
    workers: float


@dataclass(eq=False, repr=False)  # so that it equals a dict of the same counts
class Facts(dict[str, Counts]):
    """What is known of a loader: a dict {name: counts}, and its plan as attributes.

    Counts add up all epochs and all processes. The dict is {} before the first minibatch. A name is the label of a
    stage, the name of a wait, "consumer", or one of NO_STAGES: "epochs", "channel", "workers", "features".

    Attributes:
        title: the loader, as users wrote it.
        processors: number of processors that the loader may use.
        batch_size: seeds of a minibatch; 0 if that is not known.
        lanes: the lanes of the plan (groups of stages that run together), the consumer's last.
        caller: pid of the consumer's process.
        samples: the memory in use at several times.
        calls: the last calls of all stages, waits included; only a trace and a report have them.
    """

    rows: InitVar[Mapping[str, Counts]]
    title: str = ""
    processors: int = 1
    batch_size: int = 0
    lanes: tuple[LaneFacts, ...] = ()
    caller: int = 0
    samples: Sequence[Sample] = ()
    calls: Sequence[CallRecord] = ()

    def __post_init__(self, rows: Mapping[str, Counts]) -> None:
        self.update(rows)

    @classmethod
    def of_plan(
        cls: type[AnyFacts], rows: Mapping[str, Counts], title: str, plan: StageGraph[Stage], samples: Iterable[Sample]
    ) -> AnyFacts:
        """Return the Facts of `plan`, a rewritten chain that this process runs. `rows` are its counts by name."""
        described: list[LaneFacts] = []
        batch_size = 0
        for lane in lanes(plan):
            workers, pool, waiting = 1, "", ""
            if lane.carrier is not None:
                waiting = plan.numbering.of(lane.carrier.sources[0]).waiting
            if isinstance(lane.carrier, Workers):
                workers, pool = lane.carrier.options.num_workers, lane.carrier.options.worker_method
            stages = tuple(StageFacts.of(stage, plan.numbering.of(stage).label) for stage in lane.stages)
            described.append(LaneFacts(lane.title, workers, pool, waiting, stages))
            batch_size = next((size for stage in lane.stages if (size := _batch_size(stage))), batch_size)
        processors = len(os.sched_getaffinity(0))
        return cls(rows, title, processors, batch_size, tuple(described), os.getpid(), tuple(samples))

    def count(self, name: str, key: str = "seconds") -> float:
        """Return the count `key` among the counts of `name`, such as a stage's label; 0 if there is no such count."""
        return self.get(name, {}).get(key, 0.0)


def _batch_size(stage: StageBase) -> int:
    size = stage.describe().get("batch_size") if stage._does == "seeds" else 0
    return size if isinstance(size, int) else 0
