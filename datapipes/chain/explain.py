"""Show where each stage of a chain runs: as text, and as a picture.

A lane is one thread, or several workers that do the same. A stage that reads ahead ends a lane: the stages before it
run in a thread or in workers of their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from datapipes.chain.stage_base import CarrierBase, StageBase


@dataclass
class Lane:
    """Stages that run one after the other in one thread."""

    title: str
    stages: list[StageBase] = field(default_factory=list)
    carrier: CarrierBase | None = None  # what runs them; None of the caller's thread


def lanes(stages: Iterable[StageBase]) -> list[Lane]:
    """Return the lanes of a chain in the direction of the minibatches; the last one is the caller's thread."""
    rows = [Lane("caller's thread")]
    for stage in stages:
        if isinstance(stage, CarrierBase) and stage._lane:
            rows[-1].title, rows[-1].carrier = stage._lane, stage
            rows.append(Lane("caller's thread"))
        else:
            rows[-1].stages.append(stage)
    return rows


def line_of(stage: StageBase) -> str:
    """Return a stage in a line: its name and its arguments."""
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


BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN, TITLE = 230, 72, 26, 16, 24
CHARACTERS = 36  # of the details that fit into a line of a box


CONSUMER = ("minibatches", "ready for the consumer", "")


def _box(stage: StageBase) -> tuple[str, str, str]:
    return stage.name, ", ".join(f"{key}={value!r}" for key, value in stage.describe().items()), repr(stage)


def as_svg(title: str, stages: Iterable[StageBase]) -> str:
    """Return the chain as an SVG document: a row of boxes for each lane, arrows in the direction of the minibatches."""
    rows = [(lane.title, [_box(stage) for stage in lane.stages] or [CONSUMER]) for lane in lanes(stages)]
    width = 2 * MARGIN + max(len(boxes) for _, boxes in rows) * (BOX_WIDTH + GAP)
    row_height = TITLE + BOX_HEIGHT + GAP
    height = MARGIN + TITLE + len(rows) * row_height + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN, MARGIN + 14, title, 15, "bold"),
    ]
    last = None
    for i, (lane_title, boxes) in enumerate(rows):
        top = MARGIN + TITLE + i * row_height
        parts.append(_text(MARGIN, top + 18, lane_title, 12, "normal", "#555"))
        for j, (name, details, tooltip) in enumerate(boxes):
            x, y = MARGIN + j * (BOX_WIDTH + GAP), top + TITLE
            if j > 0:
                parts.append(_arrow(x - GAP, y + BOX_HEIGHT / 2, x, y + BOX_HEIGHT / 2))
            elif last is not None:
                parts.append(_arrow(*last, x + BOX_WIDTH / 2, y))
            parts.append(
                f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
                'fill="#eef4fb" stroke="#4a78a8"/>'
            )
            parts.append(_text(x + 10, y + 22, name, 14, "bold"))
            first, *more = textwrap.wrap(details, CHARACTERS) or [""]
            shown = [first, *more[:1]] if len(more) < 2 else [first, f"{more[0]} …"]
            for line, text in enumerate(shown):
                parts.append(_text(x + 10, y + 42 + 16 * line, text, 11, "normal", "#333", tooltip=tooltip))
            last = (x + BOX_WIDTH / 2, y + BOX_HEIGHT)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, size: int, weight: str, color: str = "black", tooltip: str = "") -> str:
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}">{title}{escape(text)}</text>'
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" marker-end="url(#tip)"/>'
