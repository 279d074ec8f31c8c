"""Show where each stage of a chain runs: as text, and as a picture.

A lane is one thread, or several workers that do the same. A stage that reads ahead ends a lane: the stages before it
run in a thread or in workers of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from datapipes.base.html import filled
from datapipes.chain.stage_base import CarrierBase, StageBase


@dataclass
class Lane:
    """A lane: stages that run one after the other in one thread, or so in each of several workers."""

    title: str
    stages: list[StageBase] = field(default_factory=list)
    carrier: CarrierBase | None = None  # runs the stages; None: the caller's thread


def lanes(stages: Iterable[StageBase]) -> list[Lane]:
    """Group the stages of a chain into lanes: stages that run one after the other in one thread or worker. Return the
    lanes in the order of the flow; the last lane is the caller's thread.
    """
    rows = [Lane("caller's thread")]
    for stage in stages:
        if isinstance(stage, CarrierBase) and stage._lane:
            rows[-1].title, rows[-1].carrier = stage._lane, stage
            rows.append(Lane("caller's thread"))
        else:
            rows[-1].stages.append(stage)
    return rows


def line_of(stage: StageBase) -> str:
    """Return a line of text on a stage: its name and its arguments."""
    return f"{stage.name}: {stage!r}"


def as_text(title: str, stages: Iterable[StageBase]) -> str:
    """Return the chain as indented text."""
    lines = [title]
    for lane in lanes(stages):
        lines.append(f"  {lane.title}")
        lines.extend(f"    {line_of(stage)}" for stage in lane.stages)
        if lane.carrier is not None and (pages := lane.carrier._pages()):
            lines.append(f"    {pages}")
        if not lane.stages:
            lines.append("    takes the minibatches from there")
    return "\n".join(lines)


CHARACTERS = 36  # so many characters of the details fit into a line of a box
CONSUMER = ("minibatches", ["ready for the consumer"], "")


def as_svg(title: str, stages: Iterable[StageBase]) -> str:
    """Return the chain as an SVG document: a row of boxes for each lane. Arrows point the way that minibatches go."""
    rows = [(lane.title, [_box(stage) for stage in lane.stages] or [CONSUMER]) for lane in lanes(stages)]
    return filled("chain.svg", title=title, rows=rows)


def _box(stage: StageBase) -> tuple[str, list[str], str]:
    """Return (name, lines, tooltip) of a stage: up to two lines of its details, and all details in the tooltip."""
    details = ", ".join(f"{key}={value!r}" for key, value in stage.describe().items())
    lines = textwrap.wrap(details, CHARACTERS, max_lines=2, placeholder=" …") or [""]
    return stage.name, lines, repr(stage)
