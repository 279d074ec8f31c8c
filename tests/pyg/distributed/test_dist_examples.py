"""examples/pyg/distributed: each script trains over ranks, started by hand and by torchrun, and learns its task."""

import ast
import gzip
import os
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.run
from example_data import EXAMPLES, write_ring
from pyg_ranks import free_port
from scripts import Ended, run_program

SHARED = Path(os.environ.get("DATAPIPES_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
FOLDER = EXAMPLES / "pyg" / "distributed"
TIMEOUT_S = 120


def ring(tmp_path: Path) -> Path:
    return write_ring(tmp_path / "ring.npz", 400)


def halves(tmp_path: Path) -> Path:
    """Write a folder of ogbl-ddi: drugs interact if both are below 60, or neither; each fifth interaction tests."""
    pairs = np.stack(np.triu_indices(120, 1), axis=1)
    is_link = (pairs[:, 0] < 60) == (pairs[:, 1] < 60)
    links, others = pairs[is_link][::3], pairs[~is_link][::10].astype(np.int16)
    train = links[np.arange(len(links)) % 5 > 0]
    files = {
        "edge": "".join(f"{a},{b}\n" for a, b in train),
        "num-node-list": "120\n",
        "num-edge-list": f"{len(train)}\n",
    }
    for folder in ("raw", "split"):
        (tmp_path / "ogbl_ddi" / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "ogbl_ddi" / "raw" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    tests = {"test_edge": links[::5].astype(np.int16), "test_edge_neg": others}
    np.savez(tmp_path / "ogbl_ddi" / "split" / "target.npz", **tests, valid_edge=others[:1], valid_edge_neg=others[:1])
    return tmp_path / "ogbl_ddi"


def acm(tmp_path: Path) -> Path:
    if not (SHARED / "acm_heco").is_dir():
        pytest.skip(f"{SHARED / 'acm_heco'} is not there")
    return SHARED / "acm_heco"


# {script: (data set, its files, further arguments, what chance gives)}
SCRIPTS = {
    "node_homogeneous": ("coauthor_cs", ring, ("--epochs", "20", "--batch-size", "10"), 0.6),
    "link_homogeneous": ("ogbl_ddi", halves, ("--epochs", "20", "--batch-size", "256"), 0.6),
    "node_heterogeneous": ("acm_heco", acm, ("--epochs", "4"), 0.484),
    "link_heterogeneous": ("acm_links", acm, ("--epochs", "2"), 0.55),
}


def cut(name: str, num_parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cut the data of a script into parts; return the script's arguments."""
    if find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    dataset, data, arguments, _ = SCRIPTS[name]
    options = ["--num-parts", str(num_parts), "--root", str(tmp_path / "parts"), "--data", str(data(tmp_path))]
    monkeypatch.setattr(sys, "argv", ["partition_graph.py", dataset, *options])
    monkeypatch.syspath_prepend(FOLDER)  # what the script adds to the path goes with it
    runpy.run_path(str(FOLDER / "partition_graph.py"), run_name="__main__")
    return ["--root", str(tmp_path / "parts"), *arguments]


def by_hand(name: str, num_ranks: int, arguments: list[str], tmp_path: Path) -> list[Ended]:
    """Start each rank; return how they ended."""
    place = ["--world-size", str(num_ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]

    def run(rank: int) -> Ended:
        more = (*arguments, *place, "--rank", str(rank))
        return run_program(FOLDER / f"{name}.py", *more, folder=tmp_path, timeout_s=TIMEOUT_S)

    with ThreadPoolExecutor(num_ranks) as threads:
        return [*threads.map(run, range(num_ranks))]


def by_torchrun(name: str, num_ranks: int, arguments: list[str], tmp_path: Path) -> Ended:
    options = ["--nproc-per-node", str(num_ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    program = Path(torch.distributed.run.__file__)
    script = str(FOLDER / f"{name}.py")
    return run_program(program, *options, script, *arguments, folder=tmp_path, timeout_s=TIMEOUT_S)


def assert_learned(name: str, done: Ended) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first = next(line for line in done.stdout.splitlines() if line.startswith("test "))
    figure = re.fullmatch(r"test (?:accuracy|AUC) (\d\.\d{4})", first)
    assert SCRIPTS[name][3] < float(figure[1]) <= 1


@pytest.mark.full
def test_ranks_that_are_started_by_hand_train_together(tmp_path, monkeypatch):
    name = "node_homogeneous"
    first, second = by_hand(name, 2, cut(name, 2, tmp_path, monkeypatch), tmp_path)
    assert_learned(name, first)
    assert (second.returncode, second.stdout) == (0, ""), second.stderr


# Each rank is a new interpreter, which takes most of the time.
@pytest.mark.full
@pytest.mark.parametrize(("name", "num_ranks"), [*zip(SCRIPTS, (3, 2, 3, 2), strict=True)])
def test_torchrun_starts_the_ranks(name, num_ranks, tmp_path, monkeypatch):
    assert_learned(name, by_torchrun(name, num_ranks, cut(name, num_ranks, tmp_path, monkeypatch), tmp_path))


@pytest.mark.full
@pytest.mark.parametrize("name", ["node_heterogeneous", "link_homogeneous"])
def test_one_rank_has_the_whole_graph(name, tmp_path, monkeypatch):
    (done,) = by_hand(name, 1, cut(name, 1, tmp_path, monkeypatch), tmp_path)
    assert_learned(name, done)


def test_seeds_are_given_to_the_part_that_owns_them(tmp_path, monkeypatch):
    cut("link_homogeneous", 2, tmp_path, monkeypatch)
    owner = torch.load(tmp_path / "parts" / "ogbl_ddi-partitions" / "node_map.pt")
    for name in ("train", "test"):
        folder = tmp_path / "parts" / f"ogbl_ddi-{name}-partitions"
        seeds = [torch.load(folder / f"partition{part}.pt") for part in range(2)]
        assert [owner[each[1]].unique().tolist() for each in seeds] == [[0], [1]]


def test_every_script_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SCRIPTS, "partition_graph", "ranks"}


@pytest.mark.parametrize("name", ["partition_graph", "ranks", *SCRIPTS])
def test_only_imports_differ_from_a_script_of_pyg(name):
    theirs = pytest.importorskip("torch_geometric.distributed")
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    body = ast.parse(text).body
    imports = {each.lineno: each for each in body if isinstance(each, ast.ImportFrom) and "datapipes" in each.module}
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "datapipes" in line]
    assert [number for number in lines if number > body[0].end_lineno] == [*imports]
    ours = [each for each in imports.values() if each.module == "datapipes.pyg.distributed"]
    assert [each.module for each in imports.values() if each not in ours] == ["datapipes"] * (name == "partition_graph")
    assert all(hasattr(theirs, each.name) for found in ours for each in found.names)
