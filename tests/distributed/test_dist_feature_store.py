"""DistFeatureStore: the rows of a graph in parts are those of the whole graph, with one request per part."""

import asyncio

import torch
from dist_graphs import dist_graph_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partitions import books, expect_same_values, graphs

import datapipes as dp
from datapipes.distributed import DistFeatureStore
from datapipes.graph.graph import Graph
from datapipes.partition.edge_map import with_edge_map

FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def whole_features(graph: Graph) -> dict:
    """The twin: every attribute as a TensorFeature, those of edges by edge id."""
    found = {}
    for kind in graph.node_types:
        for name, values in graph.node_attributes_of(kind).items():
            found["node", kind, name] = dp.TensorFeature(values.contiguous())
    for key in graph.edge_types:
        relation = graph.relation(key)
        ids = torch.arange(relation.indices.shape[0]) if relation.edge_ids is None else relation.edge_ids
        for name, values in relation.edge_attributes.items():
            by_id = torch.empty_like(values.contiguous())
            by_id[ids] = values
            found["edge", key, name] = dp.TensorFeature(by_id)
    return found


def ids_below(draw, count: int) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ids = draw(st.lists(st.integers(0, count - 1), max_size=20)) if count > 0 else []
    return torch.tensor(ids, dtype=dtype)


@FILES
@given(st.data())
def test_the_rows_of_parts_are_those_of_the_whole_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    book = with_edge_map(data.draw(books(graph, most_parts=4)), graph)
    local = data.draw(st.one_of(st.none(), st.integers(0, book.num_parts - 1)))
    dist_graph = dist_graph_of(graph, book, tmp_path_factory.mktemp("parts"), local)
    expected = dp.FeatureStore(whole_features(graph))
    store = DistFeatureStore(dist_graph)
    assert store.keys() == expected.keys()
    ids = {(domain, of): ids_below(data.draw, expected[domain, of, name].count) for domain, of, name in expected}
    requests = [(domain, of, name, ids[domain, of]) for domain, of, name in expected]
    for found in (store.read_many(requests), asyncio.run(store.read_many_async(requests))):
        for request, rows, wanted in zip(requests, found, expected.read_many(requests), strict=True):
            expect_same_values({request[2]: rows}, {request[2]: wanted})
    for key, feature in expected.items():
        assert (store[key].count, store[key].shape, store[key].dtype) == (feature.count, feature.shape, feature.dtype)
    dist_graph.close()
