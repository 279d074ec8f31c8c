"""PyG's loaders of whole subgraphs: batches are those of PyG's plain definitions, and a function of seed and epoch."""

import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pyg_cases import Data, assert_same, digests, pyg, random_data, random_hetero
from torch_geometric.data import Batch

from datapipes import TensorFeature, measure_norms
from datapipes.base import progress
from datapipes.pyg.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    NeighborLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    subgraphs,
)


def with_ids(data):
    """The data with the ids of its nodes, in a form that PyG's `subgraph` takes."""
    for store in data.node_stores:
        store.n = torch.arange(store.num_nodes)
        store.pop("table", None)  # an array, which PyG cannot slice
    return data


DATA, HETERO = with_ids(random_data(1)), with_ids(random_hetero(1))
# As METIS might: 4 clusters, one of a single node. PyG's class makes the rest of it.
CLUSTERS = torch.tensor([0, 1, 2, 3] + [0, 1, 2] * 12)


class GivenClusters(ClusterData):
    def _metis(self, edge_index, num_nodes):
        return CLUSTERS


def shadow(data=DATA, depth=2, num_neighbors=3, **options):
    return ShaDowKHopSampler(data, depth, num_neighbors, **{"batch_size": 8, **options})


def parts(data=DATA, num_parts=4, **options):
    return RandomNodeLoader(data, num_parts, **options)


def clusters(sparse_format="csr", **options):
    return ClusterLoader(GivenClusters(DATA, 4, log=False, sparse_format=sparse_format), **{"batch_size": 2, **options})


def saint(data=DATA, batch_size=5, **options):
    return GraphSAINTNodeSampler(data, batch_size, **{"num_steps": 4, **options})


def saint_walks(data=DATA, batch_size=3, walk_length=2, **options):
    return GraphSAINTRandomWalkSampler(data, batch_size, walk_length, **{"num_steps": 4, **options})


# --- what batches hold


def test_a_random_part_is_pygs_subgraph_of_its_nodes():
    for data in (DATA, HETERO):
        nodes = []
        for batch in parts(data, shuffle=True, seed=3):
            ids = {kind: batch[kind].n for kind in data.node_types} if data is HETERO else batch.n
            assert_same(batch, data.subgraph(ids))
            nodes.append(torch.cat([store.n + 100 * place for place, store in enumerate(batch.node_stores)]))
        assert len(nodes) == 4
        assert len(torch.cat(nodes).unique()) == len(torch.cat(nodes)) == data.num_nodes


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
def test_batches_of_clusters_are_those_of_pygs_loader(sparse_format):
    theirs = pyg.loader.ClusterLoader(GivenClusters(DATA, 4, log=False, sparse_format=sparse_format), batch_size=2)
    for ours, expected in zip(clusters(sparse_format), theirs, strict=True):
        assert_same(ours, expected)
    seen = torch.cat([batch.n for batch in clusters(sparse_format, shuffle=True)])
    assert torch.equal(seen.sort().values, DATA.n)


def test_clusters_are_those_of_metis():
    pytest.importorskip("pymetis")
    ring = torch.stack((torch.arange(6), torch.tensor([1, 2, 0, 4, 5, 3])))  # two of them
    data = Data(edge_index=torch.cat((ring, ring.flip(0)), 1), n=torch.arange(6), num_nodes=6)
    for recursive in (False, True):
        clusters = ClusterData(data, 2, recursive, log=False)
        assert sorted(sorted(cluster.n.tolist()) for cluster in clusters) == [[0, 1, 2], [3, 4, 5]]


def test_recursive_clusters_are_asked_for(monkeypatch):
    def found(graph, num_parts, *, recursive):
        assert recursive
        return CLUSTERS

    monkeypatch.setattr(subgraphs, "find_parts", found)
    order = ClusterData(DATA, 4, True, log=False).partition.node_perm
    assert torch.equal(CLUSTERS[order], CLUSTERS.sort().values)


def test_a_shadow_batch_joins_the_subgraphs_of_the_roots():
    mask = DATA.train_mask
    roots = []
    for batch in shadow(num_neighbors=-1, node_idx=mask, shuffle=True):
        root_ids = batch.n[batch.root_n_id]
        within = [pyg.utils.k_hop_subgraph(int(root), 2, DATA.edge_index, num_nodes=40)[0] for root in root_ids]
        expected = Batch.from_data_list([DATA.subgraph(nodes) for nodes in within])
        assert batch.num_graphs == len(root_ids)
        for name in ("x", "n", "edge_index", "edge_attr", "edge_time", "batch", "ptr"):
            assert torch.equal(batch[name], expected[name]), name
        assert torch.equal(batch.y, DATA.y[root_ids])
        roots.append(root_ids)
    assert torch.equal(torch.cat(roots).sort().values, mask.nonzero().flatten())
    for batch in shadow(depth=1, num_neighbors=1, transform=lambda batch: batch.update({"changed": 1})):
        assert batch.changed == 1
        assert batch.ptr.diff().max() <= 2
    star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    for replace in (False, True):
        sizes = {batch.num_nodes for batch in shadow(star, 1, 3, node_idx=[0] * 9, batch_size=1, replace=replace)}
        assert (sizes == {4}) != replace


def test_a_saint_batch_is_the_subgraph_of_nodes_that_are_drawn():
    for loader in (saint(sample_coverage=3, log=False), saint_walks(sample_coverage=3, log=False)):
        whole = copy.copy(DATA)
        whole.num_nodes, whole.node_norm, whole.edge_norm = 40, loader.node_norm, loader.edge_norm
        assert len(loader) == len([*loader]) == 4
        for batch in loader:
            assert_same(batch, whole.subgraph(batch.n))


def test_saint_draws_sources_of_edges_and_walks_along_out_edges():
    data = Data(edge_index=torch.tensor([[0, 0, 0, 1, 2], [1, 2, 3, 2, 3]]), n=torch.arange(4), num_nodes=4)
    drawn = torch.cat([batch.n for batch in saint(data, 1, num_steps=300)]).bincount(minlength=4)
    assert drawn[3] == 0
    assert 150 < drawn[0] < 210  # 3 of 5
    assert 40 < drawn[1] < 80
    line = Data(edge_index=torch.stack((torch.arange(9), torch.arange(1, 10))), n=torch.arange(10), num_nodes=10)
    for batch in saint_walks(line, 1, 3, num_steps=20):
        first = int(batch.n[0])
        assert batch.n.tolist() == [*range(first, min(first + 4, 10))]


def test_batches_see_attributes_that_are_set_after_the_loader_was_built():
    for make in (shadow, parts, saint, saint_walks):
        data = copy.copy(DATA)
        loader = make(data)
        data.x = -DATA.x
        assert all(torch.equal(batch.x, -DATA.x[batch.n]) for batch in loader)


def test_options_of_the_sampler_may_be_set_later():
    loader = parts()
    expected = digests(loader)
    loader.node_sampler.replace = True
    assert digests(loader) == expected


def test_shadows_without_neighbors_have_the_loops_of_their_roots():
    data = Data(edge_index=torch.tensor([[0, 1, 1], [0, 2, 1]]), num_nodes=3)
    (batch,) = shadow(data, 1, 0)
    assert batch.edge_index.tolist() == [[0, 1], [0, 1]]


def test_labels_of_roots_may_be_a_feature():
    without, whole = copy.copy(DATA), copy.copy(DATA)
    del without.y
    for batch, expected in zip(shadow(without, features={"y": TensorFeature(DATA.y)}), shadow(), strict=True):
        assert torch.equal(batch.y, expected.y)
    whole.y = "of the graph"
    assert all(batch.y == whole.y for batch in shadow(whole))


@pytest.mark.filterwarnings("ignore:Unable to accurately infer")
def test_the_last_node_of_the_last_cluster_may_be_isolated():
    class TwoClusters(ClusterData):
        def _metis(self, edge_index, num_nodes):
            return torch.arange(num_nodes) % 2

    made = TwoClusters(Data(edge_index=torch.tensor([[0, 2], [2, 0]])), 2, log=False)
    (ours,), (expected,) = ClusterLoader(made, batch_size=2), pyg.loader.ClusterLoader(made, batch_size=2)
    assert_same(ours, expected)


# --- files


@pytest.mark.parametrize("log", [False, True])
def test_progress_of_norms_is_shown_if_it_is_asked_for(monkeypatch, log):
    def measured(pipe, coverage):
        assert (progress.terminal_bar() is not None) == log
        return measure_norms(pipe, coverage)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "importlib", SimpleNamespace(import_module=lambda name: SimpleNamespace(tqdm=name)))
    monkeypatch.setattr(subgraphs, "measure_norms", measured)
    saint(sample_coverage=1, log=log)


def test_norms_are_kept_in_a_folder(tmp_path):
    folder = tmp_path / "a" / "b"
    norms = saint(sample_coverage=2, save_dir=folder, log=False).node_norm
    (path,) = folder.iterdir()
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "node_norm": norms * 0}, path)
    assert saint(sample_coverage=2, save_dir=folder).node_norm.sum() == 0
    for length in (1, 2):  # a file for each
        saint_walks(walk_length=length, sample_coverage=1, save_dir=folder)


class Code:
    """What makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def break_in_turn(path):
    """Put files of other kinds in place of a file, the last with code in it, which must not run."""
    saved = path.read_bytes()
    for value in (3, Code(path.with_name("run"))):
        torch.save(value, path)
        yield
    path.write_bytes(saved[:99])
    yield
    assert not path.with_name("run").exists()
    path.write_bytes(saved)


def test_norms_of_another_graph_or_other_arguments_are_refused(refuses, tmp_path):
    def norms(data=DATA, **options):
        return saint(data, **{"sample_coverage": 1, "save_dir": tmp_path, **options})

    norms()
    (path,) = tmp_path.iterdir()
    for _ in break_in_turn(path):
        refuses(ValueError, norms)
    for change in ({"num_steps": 5}, {"seed": 1}):
        refuses(ValueError, norms, **change)
    turned = copy.copy(DATA)
    turned.edge_index = DATA.edge_index.flip(0)
    refuses(ValueError, norms, turned)


def test_clusters_are_kept_in_a_folder(refuses, tmp_path, capsys):
    made = GivenClusters(DATA, 4, save_dir=tmp_path / "a")
    assert "METIS" in capsys.readouterr().err

    def read(data=DATA, **options):
        return ClusterData(data, 4, save_dir=tmp_path / "a", **options)

    allowed = {*torch.serialization.get_safe_globals()}
    assert_same(read()[2], made[2])
    assert {*torch.serialization.get_safe_globals()} == allowed
    assert capsys.readouterr().err == ""
    (path,) = (tmp_path / "a" / "part_4").iterdir()
    for _ in break_in_turn(path):
        refuses(ValueError, read)
    turned = copy.copy(DATA)
    turned.edge_index = DATA.edge_index.flip(0)
    refuses(ValueError, read, turned)
    refuses(ValueError, read, Data(edge_index=DATA.edge_index, num_nodes=41))
    refuses(ValueError, read, sparse_format="csc")
    refuses(TypeError, read, HETERO)
    assert "METIS" not in capsys.readouterr().err


def test_a_file_that_could_not_be_written_is_not_there(tmp_path, monkeypatch):
    def half(value, path):
        path.write_bytes(b"half")
        raise OSError("no space")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        saint(sample_coverage=1, save_dir=tmp_path)
    assert [*tmp_path.iterdir()] == []


# --- what they depend on

LOADERS = {
    "shadow": shadow,
    "parts": lambda **options: parts(shuffle=True, **options),
    "hetero": lambda **options: parts(HETERO, shuffle=True, **options),
    "clusters": lambda **options: clusters(batch_size=1, shuffle=True, **options),
    "saint": saint,
    "walks": saint_walks,
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=[*LOADERS])
def test_batches_depend_on_seed_epoch_and_number_alone(make):
    loader = make(seed=5)
    epochs = [digests(loader), digests(loader)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != digests(make(seed=6))
    for options in (
        {"num_workers": 2},
        {"num_workers": 1, "filter_per_worker": True},
        {"num_workers": 1, "worker_method": "thread"},
    ):
        with_workers = make(seed=5, **options)
        assert digests(with_workers) == epochs[0]
        with_workers.close()
    begun = iter(make(seed=5))
    next(begun)
    other = make(seed=5)
    other.load_state_dict(begun._loader.state_dict())
    assert digests(other) == epochs[0][1:]
    assert digests([loader.minibatch(1, 1)]) == epochs[1][1:2]
    assert digests([copy.deepcopy(loader)([0, 1])]) == digests([loader([0, 1])])


def test_a_state_names_the_clusters_and_the_length_of_walks():
    line = torch.stack((torch.arange(9), torch.arange(1, 10)))

    class Halves(ClusterData):
        def _metis(self, edge_index, num_nodes):
            return (torch.arange(num_nodes) >= self.size).long()

    loaders = []
    for Halves.size in (3, 5):
        loaders.append(ClusterLoader(Halves(Data(edge_index=line, num_nodes=10), 2, log=False)))
    for one, other in (loaders, (saint_walks(), saint_walks(walk_length=3))):
        with pytest.raises(ValueError, match="belongs to another pipeline"):
            one.load_state_dict(other.state_dict())


# --- what is refused


def test_what_no_subgraph_is_made_of_is_refused(refuses):
    for make in (shadow, saint, saint_walks):
        refuses(TypeError, make, HETERO)
    refuses(TypeError, parts, 3)
    refuses(TypeError, ClusterLoader, DATA)
    for name in ("input_time", "input_id"):
        refuses(TypeError, shadow, **{name: DATA.n})
    refuses(TypeError, parts, custom_cls=Data)
    refuses(TypeError, parts, batch_size=3)
    refuses(ValueError, shadow, node_idx=torch.ones(3, dtype=torch.bool))
    refuses(IndexError, shadow, node_idx=[40])
    refuses(TypeError, saint, sampler=[0])
    for options in ({"depth": 0}, {"num_neighbors": -2}):
        refuses(ValueError, shadow, **options)
    refuses(ValueError, parts, num_parts=0)
    for options in ({"num_steps": 0}, {"sample_coverage": -1}):
        refuses(ValueError, saint, **options)
    refuses(ValueError, saint_walks, walk_length=-1)
    refuses(ValueError, saint, Data(num_nodes=3))
    refuses(ValueError, saint, Data(edge_index=DATA.edge_index, node_norm=DATA.x), sample_coverage=1)
    for loader, names in (
        (shadow(), ("depth", "node_idx", "num_neighbors", "replace")),
        (clusters(), ("cluster_data",)),
        (parts(), ("num_parts",)),
        (saint_walks(), ("num_steps", "sample_coverage", "walk_length")),
    ):
        for name in names:
            with refuses(ValueError):
                setattr(loader, name, 3)
    NeighborLoader(DATA, [2]).num_steps = 3  # an attribute of the user
