"""Weighted draws of parts: those of the whole graph, from sums of the part's own rows; digests of parts add up."""

import pytest
import torch
from amounts import examples
from hetero_graphs import CITES, WRITES, library
from hypothesis import given
from hypothesis import strategies as st
from partitions import write
from strategies import csc_graphs, rng_seeds
from weights import sums_of, weights_for

import datapipes as dp
from datapipes import _core
from datapipes.distributed import Part, PartitionBook
from datapipes.graph.choice import sum_of_digests
from datapipes.processes.sharing import pack
from datapipes.sampling.neighbor_sampler import ByWeight


@examples(25)
@given(st.data(), csc_graphs(min_nodes=3), rng_seeds, st.booleans())
def test_parts_draw_by_weights_what_the_whole_graph_draws(tmp_path_factory, data, arrays, key, replace):
    weights = data.draw(weights_for(arrays.num_edges))
    graph = dp.CSCGraph(*arrays, edge_attributes={"w": weights})
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=graph.num_nodes, max_size=graph.num_nodes)))
    root = write(tmp_path_factory.mktemp("partition") / "root", graph, PartitionBook(3, owner))
    fanout = data.draw(st.integers(-1, 5))
    everyone = torch.arange(graph.num_nodes).numpy()
    indptr, _, positions = _core.sample_hop(
        *arrays,
        everyone,
        fanout=fanout,
        replace=replace,
        key=key,
        choice=_core.Weights([sums_of(arrays.indptr, weights)]),
    )
    parts = [Part.open(root, part) for part in range(3)]
    for part in parts:
        own = part.node_ids()
        ends, _, edge_ids = part.draw(own, fanout=fanout, key=key, replace=replace, choice=ByWeight("w"))
        for i, v in enumerate(own.tolist()):
            assert edge_ids[ends[i] : ends[i + 1]].tolist() == positions[indptr[v] : indptr[v + 1]].tolist()
    digests = [digest for part in parts for digest in part.chosen("test", ByWeight("w")).digests()]
    assert [sum_of_digests(digests)] == graph.choose("test", ByWeight("w"), [None])[None].digests()


def test_a_part_with_types_takes_its_sums_to_a_worker_and_refuses_what_is_no_weight(tmp_path):
    weights = {WRITES: {"w": torch.tensor([1.0, 2, 0, 4, 5])}, CITES: {"w": torch.tensor([1.0, -2, 3])}}
    nodes = {"paper": torch.tensor([0, 1, 1, 1]), "author": torch.tensor([0, 1, 0]), "venue": torch.tensor([0])}
    root = write(tmp_path / "root", library(edge_attributes=weights), PartitionBook(2, nodes))
    part = Part.open(root, 1)
    draw = {"ids": part.node_ids("paper"), "fanout": 2, "key": 7, "choice": ByWeight("w")}
    before = part.draw(**draw, edge_type=WRITES)
    copied = pack(part).unpack()
    assert [each.tolist() for each in copied.draw(**draw, edge_type=WRITES)] == [each.tolist() for each in before]
    with pytest.raises(
        ValueError, match=r"Part\.draw: the weight 'w' of paper:cites:paper is -2 at position 1, .* node 2;"
    ):
        part.draw(**draw, edge_type=CITES)
    with pytest.raises(
        ValueError, match=r"Part\.draw: prob_name is 'v', but the edge attributes of author:writes:paper"
    ):
        part.draw(**{**draw, "choice": ByWeight("v")}, edge_type=WRITES)
