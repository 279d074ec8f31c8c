"""The state of an epoch between two minibatches: how it is made, and how it is checked when it is loaded."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from datapipes.base.checks import INT64_MAX, MOST_SHOWN, check_bool, check_int, shown
from datapipes.base.rng import STREAM_VERSION, check_epoch
from datapipes.chain.epoch import Position
from datapipes.chain.run import Run
from datapipes.chain.stage_base import SeedBase, StageBase
from datapipes.chain.stage_graph import StageGraph

State = dict[str, Any]

DIGEST_VERSION = 2  # of the digests in a fingerprint


def fingerprint(graph: StageGraph[Any]) -> dict[str, Any]:
    """Return {name: argument} of the arguments that decide the chain's minibatches. The arguments are plain copies."""
    entries: dict[str, Any] = {"stream_version": STREAM_VERSION, "digest_version": DIGEST_VERSION}
    for stage in graph:
        ordinal = graph.ordinal(stage)
        if ordinal is None:
            continue
        # All seed stages share one name, so that a rank of several may resume the state of a single process.
        name = "item_sampler" if isinstance(stage, SeedBase) else stage._state_name
        prefix = f"{ordinal}.{name}"
        entries.update({f"{prefix}.{key}": copy.deepcopy(value) for key, value in stage.fingerprint().items()})
    return entries


def make_state(root: StageBase, run: Run | None, next_epoch: int, pending: State | None) -> State:
    """Return the state of `root`, with the fingerprint of its chain. It names the position in the running or finished
    epoch, or else the beginning of epoch `next_epoch`.

    Args:
        run: the running or finished epoch; None: there is none.
        pending: a state that was loaded and is not read from yet. It is returned if no epoch has begun.
    """
    state = make_position(root, run, next_epoch, pending)
    if "fingerprint" not in state:
        if run is not None:
            run.finish_digests()
        state["fingerprint"] = fingerprint(StageGraph(root))
    return state


def make_position(root: StageBase, run: Run | None, next_epoch: int, pending: State | None) -> State:
    """Return the state of `root` as `make_state` does, but without the fingerprint, which may take long to compute.

    If no epoch has begun and `pending` is a loaded state, return a copy of `pending`, which has a fingerprint.
    """
    if run is not None and not run.has_begun:
        run = None
    if run is None and pending is not None:
        return copy.deepcopy(pending)
    if run is not None and run.finished and run.uses_up_epoch and next_epoch != run.epoch + 1:
        run = None  # set_epoch has named another epoch since
    graph = StageGraph(root)
    seeds = graph.find(SeedBase)
    state: State = {
        "seed": seeds[0].rng_seed if seeds else None,
        "epoch": run.epoch if run else next_epoch,
        "next_index": _next_index(seeds, run.next_step, run.finished) if run else 0,
    }
    if run and run.finished:
        state["ended"] = True
    elif run and run.ahead:
        # Delivered out of order: these indices are valid for this rank alone.
        ahead = sorted(seeds[0]._indices[step] for step in run.ahead)
        state["ahead"] = {"rank": seeds[0].rank, "world_size": seeds[0].world_size, "indices": ahead}
    for stage in graph.own_orders:
        state["node"] = stage._node_state() if run else None  # asked for its state, a node would begin
    return state


def _next_index(seeds: list[SeedBase], step: int, finished: bool) -> int:
    if not seeds:
        return step
    return seeds[0].num_batches if finished or step >= seeds[0].num_steps else step * seeds[0].world_size


def parse_state(root: StageBase, state: Any) -> Position:
    """Return the position that a state of `root`'s pipeline names.

    Raises:
        TypeError, ValueError: The state is malformed or another pipeline's; the message names what differs.
    """
    where = f"{root.name}: load_state_dict"
    if not isinstance(state, Mapping):
        raise TypeError(
            f"{where} needs a dict from state_dict(), got {type(state).__name__}. Load what state_dict() returned."
        )
    missing = [key for key in ("seed", "epoch", "next_index", "fingerprint") if key not in state]
    if missing or not isinstance(state["fingerprint"], Mapping):
        raise ValueError(
            f"{where} found a state with keys {shown([*state])}; it lacks {missing or 'a dict as fingerprint'}. "
            "Load what state_dict() returned."
        )
    graph = StageGraph(root)
    seeds = graph.find(SeedBase)
    saved = {"seed": state["seed"], **state["fingerprint"]}
    current = {"seed": seeds[0].rng_seed if seeds else None, **fingerprint(graph)}
    differing = differences(saved, current, "is")
    if differing:
        raise ValueError(
            f"{where}: this state belongs to another pipeline: {'; '.join(differing)}. Load it into the pipeline that "
            "saved it, or start a new epoch without it."
        )
    epoch = check_epoch(where, state["epoch"])
    next_index, last = state["next_index"], seeds[0].num_batches if seeds else None
    most = INT64_MAX if last is None else last
    is_int = isinstance(next_index, int) and not isinstance(next_index, bool)
    if not is_int or not 0 <= next_index <= most:
        raise ValueError(
            f"{where}: next_index must be an int in [0, {most}], got {shown(next_index)}. Load what state_dict() "
            "returned."
        )
    ended = check_bool(where, "ended", state.get("ended", False))
    if not seeds:
        return Position(epoch, next_index, state.get("node"), ended=ended)
    if next_index == seeds[0].num_batches:  # the epoch had ended, whatever the number of ranks
        return Position(epoch, seeds[0].num_steps, ended=ended)
    if ended:
        raise ValueError(
            f"{where}: the epoch has ended, but next_index is {next_index} of {last}. Load what state_dict() returned."
        )
    if next_index % seeds[0].world_size != 0:
        raise ValueError(
            f"{where}: next_index {next_index} is not a multiple of world_size {seeds[0].world_size}, so the ranks "
            "cannot go on together. Resume with the world size that saved the state, or one that divides it."
        )
    step = min(next_index // seeds[0].world_size, seeds[0].num_steps)
    return Position(epoch, step, ahead=_parse_ahead(where, seeds[0], state.get("ahead"), step))


def differences(saved: Mapping[str, Any], current: Mapping[str, Any], now: str) -> list[str]:
    """Return a text for each difference between two fingerprints.

    Args:
        now: the verb that the texts have before values of `current`, such as "is".
    """
    return [
        f"{_name_of(key)} was {_shown_of(saved, key)} and {now} {_shown_of(current, key)}"
        for key in sorted(saved.keys() | current.keys(), key=_name_of)
        if key not in saved or key not in current or not _same(saved[key], current[key])
    ]


def _shown_of(fingerprint: Mapping[str, Any], key: str) -> str:
    return shown(fingerprint[key]) if key in fingerprint else "absent"


def _parse_ahead(where: str, seeds: SeedBase, ahead: Any, step: int) -> tuple[int, ...]:
    """Return the steps of this rank after `step` that were delivered already, as the state says; () if `ahead` is None.

    Args:
        seeds: the chain's ItemSampler, which maps steps to global indices.
        ahead: the entry "ahead" of a state: {"rank", "world_size", "indices"}.
        step: the first step that is not delivered.
    Raises:
        ValueError: `ahead` is malformed, or another rank's.
    """
    if ahead is None:
        return ()
    try:
        rank, world_size = (check_int(where, name, ahead[name], 0) for name in ("rank", "world_size"))
        indices = ahead["indices"]
        if not isinstance(indices, (list, tuple)):
            raise TypeError(f"{where}: indices must be a list, got {type(indices).__name__}. Load a whole state.")
        steps = tuple((check_int(where, "ahead", index, 0) - seeds.rank) // seeds.world_size for index in indices)
    except (TypeError, LookupError, ValueError) as error:
        raise ValueError(
            f"{where}: 'ahead' must name a rank, a world_size and indices, got {shown(ahead)}. Load what "
            "state_dict() returned."
        ) from error
    if (rank, world_size) != (seeds.rank, seeds.world_size):
        raise ValueError(
            f"{where}: this state was saved with in_order=False by rank {rank} of {world_size}, this is "
            f"rank {seeds.rank} of {seeds.world_size}. Let each rank load its own, or save with in_order=True."
        )
    reached = {at: seeds._indices[at] for at in steps if step < at < seeds.num_steps}
    if [reached.get(at) for at in steps] != list(indices):
        raise ValueError(
            f"{where}: 'ahead' must be indices that this rank reaches after "
            f"{seeds.rank + step * seeds.world_size}, got {shown(indices)}. Load what state_dict() returned."
        )
    return steps


def _name_of(key: Any) -> str:
    return key if isinstance(key, str) and len(key) <= MOST_SHOWN else shown(key)


def _same(saved: Any, current: Any) -> bool:
    try:
        return bool(saved == current) and isinstance(saved, bool) == isinstance(current, bool)
    except Exception:  # of an array, for example, whose comparison is no single bool
        return False
