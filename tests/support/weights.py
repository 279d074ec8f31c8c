"""Weights of the tests: values that Hypothesis draws, the sums that the kernels take, and graphs that have some."""

import numpy as np
import torch
from hypothesis import strategies as st
from pipelines import small_graph
from strategies import Graph
from typed_pipelines import typed_graph

import datapipes as dp
from datapipes import _core
from datapipes.graph.npy import to_numpy

DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
ODD = (0.0, -0.0, 1.0, 1.0, 5e-324, 1e-30, 1e-6, 0.3, 7.0, 1e6, 3e4, 1e300)  # for the narrow ones some become 0


@st.composite
def weights_for(draw, num_edges: int) -> torch.Tensor:
    """Weights of any dtype: all alike, or over many orders of magnitude with zeros."""
    dtype = draw(st.sampled_from(DTYPES))
    highest = 1e300 if dtype == torch.float64 else 3e4
    values = st.sampled_from([value for value in ODD if value <= highest]) | st.floats(0, highest)
    few = draw(st.lists(values, min_size=1, max_size=12))
    order = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(few), num_edges)
    return torch.tensor([few[i] for i in order], dtype=torch.float64).to(dtype)


def sums_of(indptr: np.ndarray, weights: torch.Tensor, num_threads: int = 1) -> _core.RowSums:
    raw = to_numpy(weights).view(np.uint8)
    made = _core.row_sums(indptr, raw, dtype=str(weights.dtype).removeprefix("torch."), num_threads=num_threads)
    return _core.RowSums(*(array for array in made if array is not None))


def weighted_hop(graph: Graph, seeds, weights: torch.Tensor, *, fanout: int, replace: bool, key: int, threads: int = 1):
    sums = sums_of(graph.indptr, weights, threads)
    seeds = np.asarray(seeds, dtype=np.int64)
    return _core.sample_hop(
        *graph, seeds, fanout=fanout, replace=replace, key=key, choice=_core.Weights([sums]), num_threads=threads
    )


def weighted_graph(weights: torch.Tensor | None = None, dtype: torch.dtype = torch.int64) -> dp.CSCGraph:
    graph = small_graph(dtype)
    values = torch.arange(graph.num_edges).remainder(7).float() ** 4 if weights is None else weights
    return dp.CSCGraph(
        graph.indptr, graph.indices, edge_ids=graph.edge_ids, edge_attributes={"w": values, "rows": torch.ones(200, 2)}
    )


def weighted_typed_graph(dtype: torch.dtype = torch.int64) -> dp.HeteroCSCGraph:
    graph = typed_graph(dtype)
    attributes = {
        of: {"w": torch.arange(graph.num_edges[of]).remainder(4).to(torch.float16)} for of in graph.edge_types
    }
    return dp.HeteroCSCGraph(
        {of: (graph.relation(of).indptr, graph.relation(of).indices) for of in graph.edge_types},
        graph.num_nodes,
        edge_ids={of: graph.relation(of).edge_ids for of in graph.edge_types},
        edge_attributes=attributes,
    )
