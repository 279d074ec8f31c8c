"""METIS: its parts, the process that it runs in, and what remains of that process however a run ends."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import all_relations
import metis_targets
import numpy as np
import pytest
import torch
from amounts import amount, examples
from channels import descriptors_from_now
from hypothesis import given
from hypothesis import strategies as st
from pipelines import BOUND_S, wait_until
from strategies import random_graph

import datapipes as dp
from datapipes.datasets.npz import read_npz
from datapipes.distributed import MetisError
from datapipes.partition.book import PartitionBook
from datapipes.partition.methods import metis_parts
from datapipes.partition.methods.assign import assign, make_assignment
from datapipes.partition.source import Source
from datapipes.processes.endings import runs

pytest.importorskip("pymetis")

SHARED = Path(os.environ.get("DATAPIPES_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


def assigned_and_peak(
    graph, num_parts: int, *, training=None, rng_seed: int = 0, recursive: bool = False, told=None
) -> tuple[PartitionBook, int]:
    source = Source(graph, training or {}, graph.node_types, graph.edge_types)
    options = {"recursive": recursive, "rng_seed": rng_seed, "progress": told or (lambda *_: None)}
    return make_assignment(source, num_parts, method="metis", **options)


def assigned(graph, num_parts: int, **options) -> PartitionBook:
    return assigned_and_peak(graph, num_parts, **options)[0]


def dense(book: PartitionBook) -> np.ndarray:
    return np.concatenate([book.nodes(node_type).dense().numpy() for node_type in book.node_types])


def cut(graph: dp.CSCGraph, parts: np.ndarray) -> int:
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
    return int((parts[graph.indices.numpy()] != parts[destinations]).sum())


# --- parts


@examples(12)
@given(all_relations.graphs(min_nodes=2), st.integers(2, 8), st.booleans(), st.booleans())
def test_any_graph_gets_parts_of_which_none_is_empty(graph, num_parts, recursive, trains):
    counts = {node_type: graph.num_nodes_of(node_type) for node_type in graph.node_types}
    num_parts = min(num_parts, sum(counts.values()))
    training = {node_type: torch.arange(count) % 3 == 0 for node_type, count in counts.items()} if trains else None
    made = assigned(graph, num_parts, training=training, recursive=recursive)
    assert {node_type: made.nodes(node_type).num_ids for node_type in counts} == counts
    assert set(dense(made)) == set(range(num_parts))


@pytest.mark.parametrize("recursive", [False, True])
def test_graphs_without_edges_and_with_fewer_components_than_parts_get_parts(recursive):
    for graph in (random_graph(9, 0, 1), random_graph(40, 30, 1), random_graph(9, 3, 1))[: amount(3, 2)]:
        for num_parts in (2, graph.num_nodes):
            made = assigned(all_relations.plain(graph), num_parts, recursive=recursive)
            assert set(dense(made)) == set(range(num_parts))


def test_two_communities_are_told_apart():
    made = torch.Generator().manual_seed(0)
    inside = torch.randint(60, (2, 600), generator=made)
    bridges = torch.tensor([[0, 5], [60, 70]])
    edges = torch.cat((inside, inside.flip(0) + 60, bridges), dim=1)
    number = torch.randperm(120, generator=made)
    graph = dp.CSCGraph.from_edge_index(number[edges], 120)
    assert cut(graph, dense(assigned(graph, 2))) == 2


def test_more_than_256_parts_are_possible():
    assert set(dense(assigned(all_relations.undirected_random(700, 3000, 1), 300))) == set(range(300))


@pytest.mark.parametrize("recursive", [False, True])
def test_the_seed_alone_chooses_the_parts(recursive):
    graph = all_relations.undirected_random(400, 2000, rng_seed=1)
    made = [dense(assigned(graph, 4, rng_seed=seed, recursive=recursive)) for seed in (1, 1, 2**64 - 1)]
    assert (made[0] == made[1]).all()
    assert (made[0] != made[2]).any()


def test_recursive_bisection_gives_other_parts():
    graph = all_relations.undirected_random(400, 2000, rng_seed=1)
    assert (dense(assigned(graph, 4)) != dense(assigned(graph, 4, recursive=True))).any()


def test_training_nodes_and_all_nodes_balance_together():
    graph = all_relations.undirected_random(1000, 4000, rng_seed=1)
    training = torch.arange(1000) < 100
    parts = dense(assigned(graph, 4, training={None: training}))
    assert np.bincount(parts).max() <= 1.11 * 1000 / 4
    assert np.bincount(parts, training.numpy()).max() <= 1.11 * 100 / 4


def test_coauthor_cs_is_cut_five_times_less_than_at_random_and_each_measure_is_even():
    path = SHARED / "coauthor_cs" / "coauthor_cs.npz"
    if not path.is_file():
        pytest.skip("needs coauthor_cs.npz (DATAPIPES_SHARED_DATA)")
    data = read_npz(path)
    graph = dp.CSCGraph.from_edge_index(data.edge_index, data.num_nodes)
    training = torch.zeros(data.num_nodes, dtype=torch.bool)
    training[torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))[:3000]] = True
    for masks in ({}, {None: training}):
        source = Source(graph, masks, (None,), (None,))
        found = {}
        for method in ("metis", "random"):
            options = {"recursive": False, "rng_seed": 0, "progress": lambda *_: None}
            found[method] = dense(assign(source, 4, method=method, **options))
        assert 5 * cut(graph, found["metis"]) <= cut(graph, found["random"])
        for of_nodes in (
            np.ones(data.num_nodes),
            np.diff(graph.indptr),
            training if masks else np.ones(data.num_nodes),
        ):
            assert np.bincount(found["metis"], of_nodes).max() <= 1.15 * float(of_nodes.sum()) / 4


def test_older_versions_of_pymetis_tell_their_integers_by_what_they_return(monkeypatch):
    told = metis_parts.index_dtype()
    monkeypatch.delattr("pymetis.zero_copy_dtype", raising=False)
    assert metis_parts.index_dtype() == told


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_graph_is_written_in_the_integers_of_metis(monkeypatch, dtype):
    """pymetis copies the graph where they are not its own, and METIS still gets the same."""
    graph, training = all_relations.undirected_random(200, 900, rng_seed=1), {None: torch.arange(200) % 9 == 0}
    wanted = dense(assigned(graph, 3, training=training))
    monkeypatch.setattr(metis_parts, "index_dtype", lambda: np.dtype(dtype))
    assert (dense(assigned(graph, 3, training=training)) == wanted).all()


# --- the process


def test_the_process_tells_its_peak_of_memory_and_the_caller_hears_of_progress():
    told = []
    graph = all_relations.undirected_random(50, 200, 1)
    _, child_peak_bytes = assigned_and_peak(graph, 2, told=lambda *given: told.append(given))
    assert 2**23 < child_peak_bytes < 2**28  # NumPy and pymetis, without torch
    assert told[0] == ("make the undirected graph", 0, 0)


def test_no_descriptor_is_left_behind():
    graph = all_relations.undirected_random(50, 200, 1)
    assigned(graph, 2)
    opened = descriptors_from_now()
    assigned(graph, 2)
    assert opened() == 0


def test_modules_that_only_the_current_folder_or_the_environment_has_are_not_imported(tmp_path, monkeypatch):
    for name in ("numpy", "pymetis", "json", "mmap"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # which this process did not see when it began
    assert set(dense(assigned(all_relations.undirected_random(50, 200, 1), 2))) == {0, 1}


def test_entries_of_the_search_path_that_are_no_text_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [tmp_path, b"bytes", 3, *sys.path])  # Python's import does the same
    assert set(dense(assigned(all_relations.undirected_random(50, 200, 1), 2))) == {0, 1}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os; os.abort()", "it was killed by SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "it was killed by SIGKILL, perhaps since memory ran out"),
        ("raise MemoryError('no room')", r"it exited with code 1\. Its last output: .*MemoryError: no room"),
        ("print('***Memory allocation failed'); raise SystemExit(4)", "code 4. Its last output: .*allocation failed"),
        (
            "print('x' * 10**5, 'the end'); raise SystemExit(4)",
            "xxx the end. Give it more memory, or use method='fennel'",
        ),
        ("import sys; sys.stdin.read()", "left no result"),
    ],
)
def test_a_process_that_ends_without_a_result_is_an_error_that_says_how(tmp_path, monkeypatch, script, message):
    (tmp_path / "child.py").write_text(script)
    monkeypatch.setattr(metis_parts, "SCRIPT", tmp_path / "child.py")
    with pytest.raises(MetisError, match=f"^Partitioner: METIS's process .*{message}"):
        assigned(all_relations.undirected_random(50, 200, 1), 2)


def test_without_the_name_of_python_the_error_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(MetisError, match=r"sys\.executable names no Python"):
        assigned(all_relations.undirected_random(50, 200, 1), 2)


def test_too_little_memory_names_what_is_needed_and_another_method(monkeypatch):
    def short(where, what, num_bytes, remedy):
        raise MemoryError(f"{where}: {what} needs {num_bytes} bytes. {remedy}")

    monkeypatch.setattr(metis_parts, "check_memory", short)
    with pytest.raises(MemoryError, match=r"^Partitioner: the undirected graph .* Use method='fennel'"):
        assigned(all_relations.undirected_random(50, 200, 1), 2)


def test_memory_that_the_system_refuses_is_a_memory_error(monkeypatch):
    def refused(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(MemoryError, match=r"needs \d+ bytes: .*Cannot allocate memory"):
        assigned(all_relations.undirected_random(50, 200, 1), 2)


def test_a_corrupt_graph_is_refused_before_metis_sees_it(refuses):
    for graph in all_relations.CORRUPT:
        refuses(ValueError, assigned, graph, 2)


# --- ends: real processes and signals. METIS takes long over the graph of metis_targets.


def test_a_killed_process_is_an_error_that_says_how():
    killed = []

    def kill(text: str, done: int, total: int) -> None:
        if text.startswith("METIS") and not killed:
            killed.extend(metis_targets.children())
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(MetisError, match="it was killed by SIGKILL, perhaps since memory ran out"):
        assigned(metis_targets.long_graph(), 64, told=kill)
    assert not runs(killed[0])


def test_ctrl_c_ends_the_process_of_metis_and_leaves_nothing():
    metis: list[int] = []

    def interrupt(text: str, done: int, total: int) -> None:
        if text.startswith("METIS") and not metis:
            metis.extend(metis_targets.children())
            signal.raise_signal(signal.SIGINT)

    opened = descriptors_from_now()
    with pytest.raises(KeyboardInterrupt):
        assigned(metis_targets.long_graph(), 64, told=interrupt)
    assert len(metis) == 1
    assert not runs(metis[0])
    assert opened() == 0


def test_the_process_of_metis_ends_with_a_parent_that_is_killed():
    context = multiprocessing.get_context("forkserver")
    hears, says = context.Pipe(duplex=False)
    parent = context.Process(target=metis_targets.partition, args=(says,), daemon=True)
    parent.start()
    says.close()
    assert hears.poll(BOUND_S)
    metis = hears.recv()
    assert runs(metis)
    parent.kill()
    parent.join(BOUND_S)
    wait_until(lambda: not runs(metis))


def test_a_process_whose_parent_gave_up_before_the_request_ends_by_itself():
    child = subprocess.run([sys.executable, "-I", str(metis_parts.SCRIPT)], input=b"", timeout=BOUND_S, check=True)
    assert child.returncode == 0


def test_a_process_whose_parent_ended_before_the_request_does_not_begin():
    request = json.dumps({"parent": os.getppid(), "memory": -1, "path": sys.path})
    command = [sys.executable, "-I", str(metis_parts.SCRIPT)]
    child = subprocess.run(command, input=request.encode(), timeout=BOUND_S, capture_output=True)
    assert (child.returncode, child.stderr) == (0, b"")
