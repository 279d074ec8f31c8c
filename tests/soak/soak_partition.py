"""Change the files of a partition at random, then open it: whole, or with a typed error, never a crash or a wait.

Each turn changes one file of a small partition: bytes overwritten, cut off, added or moved; two files exchanged; a
FIFO, a folder or a link in the place of a file. A child process opens every part of both layouts and reads all of it.
It must end within a bound, by itself, and raise nothing but errors that say what is wrong. What opens in the native
layout has the bits that were written: every byte is under a hash.
Run: PYTHONPATH=tests/support python tests/soak/soak_partition.py --turns 2000   (or make soak)
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from plain_clients import plain_graph, typed_graph
from soaking import arguments

from datapipes.base.codec import digest_message
from datapipes.distributed import LocalFeatureStore, LocalGraphStore, Partitioner
from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part

NUM_PARTS = 2
BOUND_S = 60.0  # for a child that opens a partition of some KB
MOST_MEMORY = 4 * 2**30  # of address space beyond what the child has at its beginning
ERRORS = (ValueError, TypeError, KeyError, IndexError, OSError, MemoryError)


# --- one change


def change(root: Path, rng: random.Random) -> str:
    """Change one file; return in words what was done."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = rng.choice(files)
    kind = rng.choice(["bytes", "bytes", "bytes", "cut", "add", "move", "exchange", "fifo", "folder", "link", "gone"])
    content = bytearray(path.read_bytes())
    if kind == "bytes":
        for _ in range(rng.choice([1, 1, 2, 8])):
            if content:
                # Headers are at the beginning, the directory of an archive at the end.
                place = rng.choice([rng.randrange(len(content)), rng.randrange(min(400, len(content)))])
                content[place] = rng.choice([rng.randrange(256), 0, 255, content[place] ^ 1 << rng.randrange(8)])
        path.write_bytes(content)
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == "add":
        path.write_bytes(content + rng.randbytes(rng.choice([1, 64, 4096])))
    elif kind == "move":
        place = rng.randrange(len(content) + 1)
        path.write_bytes(content[place:] + content[:place])
    elif kind == "exchange":
        other = rng.choice(files)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    else:
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(rng.choice(files))
    return f"{kind} {path.relative_to(root)}"


# --- what a child does with it


def read_native(root: Path) -> str:
    """Return a digest of all that the native layout holds."""
    message = {}
    book = open_book(root)
    for node_type in book.node_types:
        message[f"book.{node_type}"] = book.nodes(node_type).dense()
    for number in range(NUM_PARTS):
        part = Part.open(root, number)
        for node_type in part.node_types:
            name = f"{number}.{node_type}"
            message |= {f"{name}.ids": part.node_ids(node_type), f"{name}.hot": torch.stack(part.hot_nodes(node_type))}
            message |= {f"{name}.{key}": value for key, value in part.node_attributes_of(node_type).items()}
        for edge_type in part.edge_types:
            each, name = part.relation(edge_type), f"{number}.{edge_type}"
            message |= {f"{name}.ptr": each.indptr, f"{name}.src": each.indices, f"{name}.id": each.edge_ids}
            message |= {f"{name}.{key}": value for key, value in each.edge_attributes.items()}
    return digest_message(message)


def read_pyg(root: Path) -> str:
    """Read all that PyG's layout holds, through the stores."""
    for number in range(NUM_PARTS):
        graph, features = LocalGraphStore.from_partition(root, number), LocalFeatureStore.from_partition(root, number)
        for attr in graph.get_all_edge_attrs():
            graph.get_edge_index(attr)
        for attr in features.get_all_tensor_attrs():
            features.get_tensor(attr)
    return ""


def read(root: Path, says: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    found = {}
    for name, reader in (("native", read_native), ("pyg", read_pyg)):
        try:
            found[name] = reader(root / name)
        except ERRORS as error:
            found[name] = error
    says.send(
        {name: each if isinstance(each, str) else f"{type(each).__name__}: {each}" for name, each in found.items()}
    )


# --- many turns


def one_turn(whole: Path, digests: str, rng_seed: int) -> Counter[str]:
    """Return what came of a turn. AssertionError if anything went wrong."""
    rng, outcomes = random.Random(rng_seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"
        shutil.copytree(whole, root)
        done = change(root / rng.choice(["native", "pyg"]), rng)
        hears, says = multiprocessing.get_context("fork").Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=read, args=(root, says), daemon=True)
        child.start()
        says.close()
        child.join(BOUND_S)
        hangs = child.exitcode is None
        child.kill()
        child.join()
        where = f"seed {rng_seed}, {done}"
        assert not hangs, f"{where}: a reader hangs"
        assert child.exitcode == 0, f"{where}: a reader ended with exit code {child.exitcode}"
        found = hears.recv()
        assert found["native"] == digests or ": " in found["native"], f"{where}: opened with other values"
        for name, each in found.items():
            opened = ": " not in each
            outcomes[f"{name}: {'opened' if opened else each.split(':')[0]}"] += 1
    return outcomes


def run(turns: int, rng_seed: int, minutes: float = 60.0) -> Counter[str]:
    """Make so many turns, or as many as `minutes` allow."""
    total, until = Counter[str](), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as place:
        wholes = []
        for name, graph in (("plain", plain_graph(20, 90)), ("typed", typed_graph())):
            root = Path(place) / name
            Partitioner(graph, NUM_PARTS, root / "native", method="random", layouts=("native",)).generate_partition()
            Partitioner(graph, NUM_PARTS, root / "pyg", method="random", layouts=("pyg",)).generate_partition()
            read_pyg(root / "pyg")
            wholes.append((root, read_native(root / "native")))
        for turn in range(turns):
            if time.monotonic() > until:
                break
            total += one_turn(*wholes[turn % 2], rng_seed + turn)
            total["turns"] += 1
    return total


def main() -> None:
    options = arguments(__doc__, minutes=60.0, turns=2000)
    for outcome, count in sorted(run(options.turns, options.seed, options.minutes).items()):
        print(f"{count:7d}  {outcome}")


if __name__ == "__main__":
    main()
