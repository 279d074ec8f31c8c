"""`datapipes bench GRAPH`: measure minibatches of a graph on this machine, and advise on faster options.

`datapipes report TRACE`: show what bounded a loader.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from datapipes.base.checks import aligned, dtype_name, one_line
from datapipes.base.errors import text_of
from datapipes.base.files import write_text
from datapipes.base.html import filled
from datapipes.base.sizes import check_memory
from datapipes.cli import measuring, peer
from datapipes.cli.command import Commands, DoneInPart, WrongUsage, add_command, check_output, progress_of
from datapipes.cli.inputs import add_input, open_input
from datapipes.cli.measuring import BASE, IN_MEMORY, INT32, STORED, Made, Setting
from datapipes.datasets import Dataset
from datapipes.datasets.ondisk_graph import AnyGraph
from datapipes.features import TensorFeature
from datapipes.loader.report import write_report
from datapipes.loader.trace import read_trace
from datapipes.seeds import HeteroItemSet, ItemSet

Table = list[list[Any]]
Rounds = Mapping[str, list[float]]  # {options of a loader: its minibatches a second in each round}

PAYS = 1.05  # an option pays if it multiplies the minibatches a second by at least this
FEW_STEPS = 32  # an epoch of fewer minibatches is short
COLD_BYTES = 2**20  # if minibatches read this much each from the disk, the advice says so
_MOST = 10**6  # the largest value of an option
_FEWER = {
    IN_MEMORY: "read the graph into memory, CSCGraph.open(path, mmap=False)",
    INT32: "store neighbors as int32, graph.with_index_dtype(torch.int32)",
    **{how: f"store float32 features rounded, TensorFeature(rows, {how})" for how in STORED},
}
_COLUMNS = ("one_thread", "limit", "share_of_limit", "all_threads", "all_threads_limit", "all_threads_share_of_limit")
_SCALES = {"GB/s": 1e9, "million edges/s": 1e6, "ns": -1e9, "ns an edge": -1e9, "us": -1e6}  # negative: time per item
# Each figure: the names of rate and limit in `kernels`, the unit, the text.
_FIGURES = (
    ("memcpy", "", "GB/s", "memcpy"),
    ("lines", "", "ns", "a random line of 64 bytes"),
    ("lines of the graph", "", "ns", "the same, in memory as large as the neighbors"),
    ("sampling", "lines of the graph", "ns an edge", "sampling; limit: the random lines that it needs"),
    ("sampling", "lines of the graph", "million edges/s", "the same"),
    ("gather", "memcpy of rows", "GB/s", "gather of features; limit: memcpy of as many bytes"),
    ("index_select", "memcpy of rows", "GB/s", "torch.index_select, into memory that is there"),
    *(
        (f"gather {dtype}", "memcpy of rows", "GB/s", f"gather, {how}; float32 comes out")
        for how, dtype in STORED.items()
    ),
    ("channel", "memcpy of a message", "GB/s", "channel to another process; limit: memcpy"),
    ("hops", "", "us", "a hop to another process and back"),
)


def add_to(commands: Commands) -> None:
    """Add `datapipes bench GRAPH` to the commands."""
    text = (
        "Measure minibatches of a graph on this machine, beside the machine's limits, and advise. This takes some "
        "minutes and changes nothing. Seeds are the training items of a data set, or all nodes of the largest type."
    )
    parser = add_command(commands, "bench", run, text)
    add_input(parser, "graph", "a folder that graph.save wrote, or the files of a data set")
    add = parser.add_argument
    add("--batch-size", type=int, default=1024, metavar="N", help="seeds per minibatch; default: 1024")
    add("--fanouts", type=_fanouts, default=[15, 10], metavar="N,N", help="in-edges per hop, -1: all; default: 15,10")
    add("--seconds", type=float, default=1.0, metavar="S", help="of a measurement, x 5 for a loader; default: 1")
    add("--workers", type=int, metavar="N", help="try up to N workers; default: all processors")
    add("--feature-dim", type=int, default=100, metavar="N", help="columns of made-up features if there are none")
    add("--peer", choices=("graphbolt",), help=f"also measure {peer.NAME}, in an environment that is made for it")
    add("--peer-python", metavar="PYTHON", help="the interpreter to make that environment with; default: this one")
    add("--html", metavar="FILE", help="also write a page, which needs no network")


def _fanouts(text: str) -> list[int]:
    try:
        return [*map(int, text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{one_line(text)} is not N,N,...: a whole number for each hop") from None


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Run the command: measure the graph's minibatches; return the figures with advice, as (text, JSON values)."""
    processors, path = len(os.sched_getaffinity(0)), Path(arguments.graph)
    workers = processors if arguments.workers is None else arguments.workers
    html = None if arguments.html is None else Path(arguments.html)
    lowest = {"--batch-size": 1, "--feature-dim": 1, "--workers": 0, "--seconds": 0.001}
    numbers = (arguments.batch_size, arguments.feature_dim, workers, arguments.seconds)
    for (option, low), value in zip(lowest.items(), numbers, strict=True):
        if not low <= value <= _MOST:
            raise WrongUsage(f"{option} must be from {low} to {_MOST}, got {value}. Give another number.")
    check_output("--html", html)
    left: list[str] = []
    bottlenecks: dict[str, Any] = {}
    data = open_input(path, arguments)
    setting = _setting(data, arguments)
    if arguments.peer is not None:
        peer.check(setting)
        peer_python = peer.environment(arguments.peer_python)
    elif arguments.peer_python is not None:
        raise WrongUsage("--peer-python is for --peer, which is not given. Add --peer graphbolt.")
    with warnings.catch_warnings(), progress_of("bench", quiet=not sys.stderr.isatty()) as progress:
        warnings.simplefilter("ignore")  # each loader would warn again that seeds are among the edges
        made = Made.of(setting)  # before anything else reads the mapped files
        if made.counts["edges"] == 0:
            raise ValueError(
                "no in-edges were sampled: the seeds have none, or all --fanouts are 0. Give other --fanouts, or a "
                "graph whose seeds have in-edges."
            )
        settings = measuring.variants(setting, None if isinstance(data, Dataset) else path, left)
        rates = measuring.kernels(settings, made, arguments.seconds, progress, left)
        sides = _loaders(
            settings, partial(measuring.deliver, seconds=arguments.seconds, bottlenecks=bottlenecks), workers
        )
        rounds = measuring.alternate(sides, "loaders", progress, left)
        peers = peer.compare(setting, made, arguments.seconds, peer_python, progress, left) if arguments.peer else {}
    fastest, advice = _advice(rates, rounds, setting, made)
    bound = bottlenecks[fastest]
    if bound is not None and bound.waits > 0.5:  # bench only waits for minibatches: less means too short epochs
        measured = "num_workers" in bound.advice  # the gain of workers is shown above
        advice.append(f"With {fastest}: {bound.found if measured else bound}")
    graph, table = setting.graph, _table(rates, made)
    features = [
        f"{kind or 'node'}: {name} {dtype_name(rows.dtype)} {[rows.count, *rows.shape]}"
        for (_, kind, name), rows in setting.features.items()
    ]
    values: dict[str, Any] = {"graph": str(path), "index_dtype": dtype_name(graph.index_dtype), "features": features}
    values |= {"nodes": sum(map(graph.num_nodes_of, graph.node_types)), "edges": setting.num_edges()}
    values |= {"seeds": len(setting.items), "batch_size": setting.batch_size, "fanouts": setting.fanouts}
    values |= {"processors": processors, "threads": torch.get_num_threads(), "minibatch": made.counts}
    values |= {"first_minibatches": made.cost, "advice": advice, "left_out": left, "peer": peers}
    values["machine"] = _machine()
    values["minibatches_per_s"] = {name: median(rates) for name, rates in rounds.items()}
    values["figures"] = {key: dict(zip(_COLUMNS, row, strict=True)) for key, _, *row in table}
    values["bottleneck"] = None if bound is None else {"of": fastest, **bound._asdict()}
    about, kernels, loaders = _shown(values, table, rounds)
    beside = _beside(peers)
    lines = [str(path), *about, "", *aligned(kernels), "", *aligned(loaders, len(loaders)), ""]
    lines += [*aligned(beside), ""] if beside else []
    lines += [f"* {sentence}" for sentence in advice] + [f"left out: {side}" for side in left]
    text = "\n".join(map(one_line, lines))
    if html is not None:
        try:
            page = {"title": "Minibatches on this machine", "subtitle": path, "is_well": True, "left": left}
            page |= {"about": about, "kernels": kernels, "loaders": loaders, "advice": advice, "beside": beside}
            write_text(html, filled("bench.html", rates=values["minibatches_per_s"], **page))
        except OSError as error:  # print the figures nevertheless
            raise DoneInPart(f"{text}\n--html: {html} cannot be written: {error.strerror}.", values) from error
    return text, values


def _shown(values: Mapping[str, Any], table: Table, rounds: Rounds) -> tuple[list[str], Table, Table]:
    """Return (about, kernels, loaders): lines on the graph and its minibatches, and two tables of texts to print."""
    counts, features, threads = values["minibatch"], values["features"], f"{values['threads']} threads"
    about = [
        f"{values['nodes']:,} nodes, {values['edges']:,} edges, neighbors {values['index_dtype']}; "
        f"{values['processors']} processors, {threads}",
        f"{min(values['batch_size'], values['seeds']):,} of {values['seeds']:,} seeds a minibatch, fanouts "
        f"{values['fanouts']}: {counts['edges']:,.0f} edges, {counts['input_nodes']:,.0f} nodes, "
        f"{counts['feature_bytes'] / 1e6:.1f} MB of features",
        f"features of {', '.join(features[:4])}{f' ... of {len(features)} in all' if len(features) > 4 else ''}",
        ", ".join(" ".join(each) if each[0] != "processor" else each[1] for each in values["machine"].items()),
    ]
    kernels = [["", "one thread", "limit", "of it", threads, "limit", "of it"]]
    kernels += [[text, *map(_text, row, cycle((False, False, True)))] for _, text, *row in table]
    loaders = [["", "minibatches/s", f"times {BASE}"]]
    loaders += [[name, _text(rate), _gain_text(rounds, name)] for name, rate in values["minibatches_per_s"].items()]
    return about, kernels, loaders


def _machine() -> dict[str, str]:
    """Return the machine and the versions that the figures are of."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    versions = {name: sys.modules[name].__version__ for name in ("datapipes", "torch", "numpy")}
    return {"processor": model[1] if model else platform.machine(), "Python": platform.python_version(), **versions}


def _beside(peers: Mapping[str, dict[str, Any]]) -> Table:
    """Return the comparisons with a peer as a table of texts to print; [] if there are none."""
    if not peers:
        return []
    names = [f"{peer.NAME}, {allocator}" for allocator in peer.ALLOCATORS]
    table = [["", "datapipes", *(cell for name in names for cell in (name, "times as fast"))]]
    for work, figures in peers.items():
        row = [f"{work} ({figures['unit']})", _text(figures["datapipes"])]
        for name, allocator in zip(names, peer.ALLOCATORS, strict=True):
            times, least, most = figures[f"times {allocator}"]
            row += [_text(figures[name]), f"{times:.2f} ({least:.2f} to {most:.2f})"]
        table.append(row)
    return table


def _setting(data: AnyGraph | Dataset, arguments: argparse.Namespace) -> Setting:
    """Return the graph, seeds, features and options to measure, from the input and the command's arguments.

    If there are no features, a table of ones is made for each node type.
    """
    if isinstance(data, Dataset):
        graph, items = data.training_graph, data.train_set
        features: Any = {key: feature for key, feature in data.features.items() if key[0] == "node"}
    else:
        graph, largest = data, max(data.node_types, key=data.num_nodes_of)
        seeds = ItemSet(graph.num_nodes_of(largest))
        items = seeds if largest is None else HeteroItemSet({largest: seeds})
        features = measuring.features_of(graph)
    setting = Setting(graph, items, features, arguments.batch_size, arguments.fanouts)
    try:
        setting.sampled()
    except ValueError as error:  # no seeds, or fanouts that are not allowed
        raise WrongUsage(text_of(error)) from error
    if features:
        return setting
    nodes, columns = {kind: graph.num_nodes_of(kind) for kind in graph.node_types}, arguments.feature_dim
    num_bytes = 4 * sum(nodes.values()) * columns
    check_memory(
        "--feature-dim", f"a table of features, float32 with {columns} columns,", num_bytes, "Give fewer columns."
    )
    made = {("node", kind, "made"): TensorFeature(np.ones((n, columns), np.float32)) for kind, n in nodes.items()}
    return setting._replace(features=made)


def _loaders(settings: Mapping[str, Setting], deliver: Any, most: int) -> dict[str, measuring.Side]:
    """Return the loaders to compare, as {text of the options: function that measures this loader}.

    There is one for each of `settings`, and loaders of 1, 2, 4 ... workers, `most` at most, as threads and as
    processes.
    """
    sides: dict[str, measuring.Side] = {
        name: partial(deliver, setting, name=name) for name, setting in settings.items()
    }
    for count in sorted({2**power for power in range(20) if 2**power < most} | ({most} - {0})):
        for method in ("thread", "process"):
            name = f"num_workers={count}, worker_method={method!r}"
            sides[name] = partial(deliver, settings[BASE], name=name, num_workers=count, worker_method=method)
    return sides


def _gains(rounds: Rounds, name: str, before: str = BASE) -> list[float]:
    """Return how many times as fast the loader `name` was as the loader `before`: a number for each round, sorted."""
    return sorted(rate / other for rate, other in zip(rounds[name], rounds.get(before) or rounds[BASE], strict=True))


def _gain_text(rounds: Rounds, name: str, before: str = BASE) -> str:
    gains = _gains(rounds, name, before)
    return "1" if name == before else f"{median(gains):.2f} ({gains[0]:.2f} to {gains[-1]:.2f})"


def _pays(rounds: Rounds, name: str, before: str = BASE) -> bool:
    """Return whether it pays to use the loader `name` in place of `before`.

    It does if `name` is at least PAYS times as fast in the median of the rounds, and is faster in 4 of 5 rounds.
    """
    gains = _gains(rounds, name, before)
    return median(gains) >= PAYS and gains[len(gains) // 5] > 1


def _advice(rates: Mapping[str, float], rounds: Rounds, setting: Setting, made: Made) -> tuple[str, list[str]]:
    """Return (options, advice): options of the loader to use, and sentences for the user.

    The options are those of the best loader with workers; or BASE, no workers, if workers do not pay.
    """
    more, workers = "times as many minibatches/s", [name for name in rounds if "worker_method" in name]
    paying = [name for name in workers if _pays(rounds, name)]
    best = max(paying or workers, key=lambda name: median(_gains(rounds, name)), default=BASE)
    if paying:
        said = [f"Give {best}: {_gain_text(rounds, best)} {more} as {BASE}."]
    else:
        makes = f": workers do not surely pay; {best} makes {_gain_text(rounds, best)} {more}"
        said = [f"Stay with {BASE}{makes if workers else ''}."]
    if (threads := torch.get_num_threads()) > 1:
        gain = rates["sampling all"] / rates["sampling 1"]
        does = f"sampling on {threads} threads is {gain:.2f} times as fast as on one"
        pays, spare = f"Leave torch.set_num_threads at {threads}", "More threads than one do not make kernels faster"
        said.append(f"{pays if gain >= PAYS else spare}: {does}.")
    saved = {INT32: f" It takes {_text(4 * setting.num_edges() / 1e6)} MB less."}
    for name, (option, change) in product(rounds, _FEWER.items()):
        if name.endswith(option):
            before = name.removesuffix(f", {option}")
            sure = change[0].upper() + change[1:]
            advice = sure if _pays(rounds, name, before) else f"It is not surely faster to {change}"
            said.append(f"{advice}: {_gain_text(rounds, name, before)} {more}.{saved.get(option, '')}")
    if (steps := -(-len(setting.items) // setting.batch_size)) < FEW_STEPS:
        said.append(f"Minibatches in an epoch: {steps}, so few that its start slows sampling and all loaders.")
    count, cost = len(made.minibatches), made.cost
    if cost["first_disk_bytes"] >= COLD_BYTES * count:
        first, again = (cost[f"{when}_seconds"] / count * 1e3 for when in ("first", "again"))
        stays = cost["again_disk_bytes"] < COLD_BYTES * count
        said.append(
            f"Not all was in memory: the first {count} minibatches read {cost['first_disk_bytes'] / 1e6:,.1f} MB from "
            f"the disk and took {first:.1f} ms each, {again:.1f} ms when repeated. "
            f"{'Read the files once before training' if stays else 'Give the machine more memory'}."
        )
    return best if paying else BASE, said


def _table(rates: Mapping[str, float], made: Made) -> Table:
    """Return a row for each figure: (key, text, and six numbers, None where there is none).

    The numbers are rate, limit, and rate / limit, for one thread and then for all threads.
    """
    rows: Table = []
    # An edge needs one line of the neighbors and one of the id table; a destination needs one of the offsets.
    lines = 2 + made.counts["destinations"] / made.counts["edges"]
    for name, limit, unit, text in _FIGURES:
        scale, needs = _SCALES[unit], lines if name == "sampling" else 1
        row: list[Any] = []
        for threads in ("1", "all"):
            reached = rates.get(f"{name} {threads}", 0.0)
            most = max(rates.get(f"{limit} {count}", 0.0) for count in {"1", threads}) / needs if reached else 0.0
            row += [None if not rate else rate / scale if scale > 0 else -scale / rate for rate in (reached, most)]
            row.append(reached / most if most else None)
        if any(row):
            key = f"{name} {unit}".replace(" an ", " per ").replace("/", " per ").replace(" ", "_").lower()
            rows.append([key, f"{text} ({unit})", *row])
    return rows


def _text(value: float | None, is_share: bool = False) -> str:
    return "-" if value is None else f"{value:.0%}" if is_share else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# --- report


def add_report(commands: Commands) -> None:
    """Add `datapipes report TRACE`, which shows what bounds the loader of a trace; `--html` writes a page."""
    parser = add_command(
        commands,
        "report",
        _report,
        "Show what bounds a loader, from a trace that loader.trace wrote. With --html, write the page that "
        "loader.report writes.",
    )
    parser.add_argument("trace", metavar="TRACE", help="a file that loader.trace wrote")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML page")


def _report(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Read a trace; return its statistics with the loader's bottleneck, as (text, JSON values).

    With `--html`, write the report as a page, too.
    """
    page: Path | None = arguments.html
    check_output("--html", page)
    if page is not None and page.exists() and os.path.samefile(page, arguments.trace):
        raise WrongUsage(f"--html: {page} is the trace itself; the page would replace it. Name another file.")
    stats = read_trace(arguments.trace)
    bound = stats.found
    if page is not None:
        write_report(page, stats)
    values = {"trace": arguments.trace, "bottleneck": None if bound is None else bound._asdict(), "stats": stats}
    return str(stats), values
