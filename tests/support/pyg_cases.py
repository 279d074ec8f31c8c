"""Data of PyG for the tests of datapipes.pyg, and what batches hold."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import datapipes as dp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pyg = pytest.importorskip("torch_geometric", reason="objects of torch_geometric are needed: install the pyg extra")
    import torch_geometric.loader
    import torch_geometric.nn
    import torch_geometric.sampler
    import torch_geometric.testing
    import torch_geometric.typing
    import torch_geometric.utils
    from torch_geometric.data import Data, HeteroData

WRITES, CITES, WRITTEN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "rev_writes", "author")
needs_torch_sparse = pytest.mark.skipif(
    not torch_geometric.typing.WITH_TORCH_SPARSE,
    reason="PyG's own NeighborLoader needs torch-sparse or pyg-lib, which is not installed",
)


def random_columns(generator: torch.Generator, num_src: int, num_dst: int, num_edges: int) -> Tensor:
    """Columns with self-loops, parallel edges and nodes without edges."""
    ends = [torch.randint(0, max(count - 2, 1), (num_edges,), generator=generator) for count in (num_src, num_dst)]
    columns = torch.stack(ends)
    columns[:, : num_edges // 8] = columns[:, num_edges // 8 : 2 * (num_edges // 8)]  # parallel
    return columns


def random_data(seed: int, num_nodes: int = 40, num_edges: int = 160) -> Data:
    """Data with node and edge attributes of many dtypes, masks, times, weights, and fields of neither."""
    generator = torch.Generator().manual_seed(seed)
    data = Data(edge_index=random_columns(generator, num_nodes, num_nodes, num_edges))
    data.x = torch.randn(num_nodes, 5, generator=generator)
    data.half = torch.randn(num_nodes, 3, generator=generator).half()
    data.flags = torch.rand(num_nodes, 2, 2, generator=generator) < 0.5
    data.y = torch.randint(0, 4, (num_nodes,), generator=generator)
    data.train_mask = torch.rand(num_nodes, generator=generator) < 0.5
    data.time = torch.randint(0, 30, (num_nodes,), generator=generator)
    data.table = torch.randn(num_nodes, 4, generator=generator).numpy().astype(np.float64)
    data.apart = torch.randn(6, num_nodes, generator=generator).T  # the values of a row are not adjacent
    data.edge_attr = torch.randn(num_edges, 2, generator=generator)
    data.edge_weight = torch.rand(num_edges, generator=generator)
    data.edge_time = torch.randint(0, 30, (num_edges,), generator=generator)
    data.num_classes, data.name = 4, "random"
    data.whole = torch.randn(1, 3, generator=generator)
    return data


def random_hetero(seed: int, num_papers: int = 30, num_authors: int = 22) -> HeteroData:
    """HeteroData of papers and authors; venues are a type without edges."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x = torch.randn(num_papers, 4, generator=generator)
    data["paper"].y = torch.randint(0, 3, (num_papers,), generator=generator)
    data["paper"].train_mask = torch.rand(num_papers, generator=generator) < 0.6
    data["paper"].time = torch.randint(0, 30, (num_papers,), generator=generator)
    data["author"].x = torch.randn(num_authors, 2, generator=generator).double()
    data["author"].time = torch.randint(0, 30, (num_authors,), generator=generator)
    data["venue"].num_nodes = 3
    counts = {"paper": num_papers, "author": num_authors}
    for of in (WRITES, CITES, WRITTEN):
        data[of].edge_index = random_columns(generator, counts[of[0]], counts[of[2]], 90)
        data[of].edge_attr = torch.randn(90, 3, generator=generator)
        data[of].edge_weight = torch.rand(90, generator=generator)
        data[of].edge_time = torch.randint(0, 30, (90,), generator=generator)
    return data


class OwnSampler(pyg.sampler.BaseSampler):
    """A sampler of the user's, by a function of its input."""

    edge_permutation = None

    def __init__(self, sample: Callable[[Any], Any]) -> None:
        self.sample = sample

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        return self.sample(index)

    sample_from_edges = sample_from_nodes


def without_edge_ids(sampler: Any) -> OwnSampler:
    """A sampler that draws what `sampler` does, and does not give the ids of the edges."""

    def sample(index: Any) -> Any:
        out = sampler.sample_from_nodes(index)
        out.edge = None
        return out

    return OwnSampler(sample)


def merged(data: Any) -> Any:
    """The data without parallel edges, which the stores of PyG's tests do not hold, and without attributes of edges."""
    plain = copy.copy(data)
    for store in plain.edge_stores:
        store.edge_index = pyg.utils.coalesce(store.edge_index)
        for name in ("edge_attr", "edge_weight", "edge_time"):
            del store[name]
    return plain


def stores_of(
    data: Any,
    layouts: str | Sequence[str] = "coo",
    *,
    node_names: Sequence[str] = ("x", "y", "time"),
    edge_names: Sequence[str] = (),
) -> tuple[Any, Any]:
    """PyG's remote backend: the two stores of its tests, with what a HeteroData or a Data has of these names.

    `layouts` is "coo" or "csc", for all edge types or one for each.
    """
    features, graph = pyg.testing.MyFeatureStore(), pyg.testing.MyGraphStore()
    typed = isinstance(data, HeteroData)
    node_types, edge_types = (data.node_types, data.edge_types) if typed else ([None], [None])
    layouts = [layouts] * len(edge_types) if isinstance(layouts, str) else layouts
    for of, names in (*((of, node_names) for of in node_types), *((of, edge_names) for of in edge_types)):
        store = data if of is None else data[of]
        for name in names:
            if name in store:
                features.put_tensor(store[name], group_name=of, attr_name=name, index=None)
    counts = {of: data[of].num_nodes for of in node_types} if typed else {None: data.num_nodes}
    for of, layout in zip(edge_types, layouts, strict=True):
        columns = (data if of is None else data[of]).edge_index
        size = (counts[None], counts[None]) if of is None else (counts[of[0]], counts[of[2]])
        if layout == "csc":
            by_destination = dp.HeteroCSCGraph.from_edge_index({of: columns}, counts).relation(of)
            columns = (by_destination.indices, by_destination.indptr)
        graph.put_edge_index(tuple(columns), edge_type=of, layout=layout, size=size)
    return features, graph


def all_in_edges(columns_of: Any, seeds_of: Any, hops: int) -> tuple[Any, Any]:
    """The nodes within some hops of the seeds, by type, and all in-edges of those nearer: the plain definition."""
    found = {of: set(ids) for of, ids in seeds_of.items()}
    frontier, edges = {of: set(ids) for of, ids in seeds_of.items()}, {of: set() for of in columns_of}
    for _ in range(hops):
        new = {of: set() for of in found}
        for of, columns in columns_of.items():
            src, dst = (None, None) if of is None else (of[0], of[2])
            for place, (source, destination) in enumerate(columns.T.tolist()):
                if destination in frontier[dst]:
                    edges[of].add((source, destination, place))
                    new[src].add(source)
        frontier = {of: ids - found[of] for of, ids in new.items()}
        found = {of: ids | new[of] for of, ids in found.items()}
    return found, {of: sorted(each) for of, each in edges.items()}


def fields(batch: Any) -> dict[Any, Any]:
    """Everything a batch holds, by (type, name)."""
    if isinstance(batch, HeteroData):
        found = {(None, name): value for name, value in batch._global_store.items()}
        for store in (*batch.node_stores, *batch.edge_stores):
            found |= {(store._key, name): value for name, value in store.items()}
        return found
    return {(None, name): value for name, value in batch._store.items()}


def assert_same(one: Any, other: Any) -> None:
    """Check that two batches hold the same, field by field, bit by bit."""
    ours, theirs = fields(one), fields(other)
    assert type(one) is type(other)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        expected = theirs[key]
        assert type(value) is type(expected), key
        if isinstance(value, Tensor):
            assert value.dtype == expected.dtype, key
            assert value.shape == expected.shape, key
            assert torch.equal(value, expected), key
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, expected), key
        else:
            assert value == expected, key


def digest(batch: Any) -> list[Any]:
    """What a batch holds, in a form that can be compared with others and kept."""
    return sorted(
        (str(key), value.tolist() if hasattr(value, "tolist") else value) for key, value in fields(batch).items()
    )


def digests(loader: Any) -> list[Any]:
    """The digests of the batches of one loop."""
    return [digest(batch) for batch in loader]


def edges_of(batch: Any, of: Any = None) -> list[tuple[int, int, int]]:
    """The edges of a batch by global ids and edge id, sorted."""
    store = batch if of is None else batch[of]
    src, dst = (batch.n_id, batch.n_id) if of is None else (batch[of[0]].n_id, batch[of[2]].n_id)
    row, col = store.edge_index
    return sorted(zip(src[row].tolist(), dst[col].tolist(), store.e_id.tolist(), strict=True))
