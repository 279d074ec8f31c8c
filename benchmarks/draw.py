"""Draws the pictures of docs/performance.md from what benchmarks write with --json; needs matplotlib.

Run: python benchmarks/draw.py FOLDER FILE.json ...
FOLDER gets peers.svg from the figures of sample.py, hetero.py, gather.py, samplers.py and end_to_end.py,
and training.svg and played-device.svg from those of training.py. Figures that are in no file are left
out; a picture that has none is not drawn.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PEERS = {"graphbolt 2.1.0": "GraphBolt, allocator tuned", "graphbolt 2.1.0 as installed": "GraphBolt as installed"}
OURS, KEPT, INSTALLED = "#4a78a8", "#b08040", "#d9c29c"
COLORS = dict(zip(PEERS, (KEPT, INSTALLED), strict=True))
RATIOS = {  # what is compared: the name of its ratio; "{}" is the peer
    "sample, 1 thread": "frontier all, ratio to {}",
    "sample, 2 threads": "2 threads, ratio to {}, 2 threads",
    "sample 5 relations": "5 relations, ratio to {}",
    "gather, 1 thread": "fetch_feature, ratio to {}",
    "gather, 2 threads": "fetch_feature, 2 threads, ratio to {}, 2 threads",
    "whole chain, 2 cores": "DataLoader, ratio to {}'s best",
    "by weights": "weighted: faster than {} per edge",
    "by weights, with replacement": "weighted_replace: faster than {} per edge",
    "temporal, sorted": "temporal_sorted: faster than {} per edge",
    "temporal, in no order": "temporal: faster than {} per edge",
    "LABOR": "labor: faster than {} per edge",
    "in-subgraph": "in_subgraph: faster than {} per edge",
}

Figures = dict[str, float]


def main() -> None:
    folder, *files = map(Path, sys.argv[1:])
    of_files = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "datapipes", "font.size": 9, "axes.spines.top": False}
    plt.rcParams |= {"axes.spines.right": False, "legend.frameon": False}
    for name, draw in (("peers", draw_peers), ("training", draw_training), ("played-device", draw_device)):
        figure = plt.figure(figsize=(8, 4.2), constrained_layout=True)
        draw(figure, of_files)
        if any(axes.has_data() for axes in figure.axes):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


def merged(of_files: list[Figures]) -> Figures:
    return {key: value for figures in of_files for key, value in figures.items()}


def draw_peers(figure, of_files: list[Figures]) -> None:
    """Draw how many times as fast as each peer we are, on a logarithmic axis."""
    figures, axes = merged(of_files), figure.subplots()
    shown = {what: key for what, key in RATIOS.items() if key.format(next(iter(PEERS))) in figures}
    for number, (peer, label) in enumerate(PEERS.items()):
        values = [figures[key.format(peer)] for key in shown.values()]
        places = [place + 0.4 * number for place in range(len(shown))]
        bars = axes.barh(places, values, 0.38, color=COLORS[peer], label=f"than {label}")
        axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=2, fontsize=8)
    axes.set_yticks([place + 0.2 for place in range(len(shown))], [*shown])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.set_xlabel("how many times as fast datapipes is")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def draw_training(figure, of_files: list[Figures]) -> None:
    """Draw milliseconds per step of each loader, alone and with the model: a panel for each allocator of both sides."""
    suffix = ": with the model (ms a step)"
    of_files = [figures for figures in of_files if any(key.endswith(suffix) for key in figures)]
    if not of_files:
        return
    panels = figure.subplots(1, len(of_files), sharey=True, squeeze=False)[0]
    for axes, figures in zip(panels, of_files, strict=True):
        tuned = figures["allocator of this process"] == "keeps memory"
        peer, other = [*PEERS] if tuned else [*PEERS][::-1]
        names = [
            key.removesuffix(suffix) for key in figures if key.endswith(suffix) and not key.startswith(f"{other}, ")
        ]
        labels = [name.replace(f"{peer}, ", "GraphBolt, ") for name in names]
        colors = [COLORS[peer] if name.startswith(f"{peer}, ") else OURS for name in names]
        together = axes.barh(labels, [figures[f"{name}{suffix}"] for name in names], 0.75, color=colors, alpha=0.55)
        axes.barh(labels, [figures[f"{name}: loader alone (ms a step)"] for name in names], 0.4, color=colors)
        axes.bar_label(together, fmt="%.0f", padding=2, fontsize=8)
        axes.axvline(figures["model alone (ms a step)"], color="#444", linestyle="--", linewidth=1)
        axes.margins(x=0.1)
        axes.set_title(f"both allocators {'tuned' if tuned else 'as installed'}", fontsize=9)
    panels[0].invert_yaxis()
    figure.supxlabel("ms a step: the loader alone (narrow), with the model (wide); dashed: our model alone", fontsize=9)


def draw_device(figure, of_files: list[Figures]) -> None:
    """Draw how busy a played device is, over the milliseconds of its steps."""
    figures, axes = merged(of_files), figure.subplots()
    found = (re.search(r", (\d+) ms \(busy\)$", key) for key in figures)
    steps_ms = sorted({int(match[1]) for match in found if match})
    lines = {"plain loop": ("plain loop", OURS, ":"), "0 workers": ("0 workers", OURS, "-")}
    lines |= {"2 processes": ("2 worker processes", OURS, "--"), "2 threads": ("2 worker threads", OURS, "-.")}
    for name, (label, color, style) in lines.items():
        values = [figures.get(f"{name}, {ms} ms (busy)") for ms in steps_ms]
        if None not in values:
            axes.plot(steps_ms, values, color=color, linestyle=style, marker="o", markersize=3, label=label)
    for peer, label in PEERS.items():
        best = [
            max(
                (v for k, v in figures.items() if k.startswith(f"{peer}, ") and k.endswith(f", {ms} ms (busy)")),
                default=None,
            )
            for ms in steps_ms
        ]
        if None not in best:
            axes.plot(steps_ms, best, color=COLORS[peer], marker="s", markersize=3, label=f"{label}, its best")
    axes.set_xticks(steps_ms)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("ms a step of the device")
    axes.set_ylabel("share of time in which it is busy")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)


if __name__ == "__main__":
    main()
