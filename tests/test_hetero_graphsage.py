"""The model of the examples for heterogeneous graphs, on blocks made here."""

from pathlib import Path

import pytest
import torch

import datapipes as dp

EXAMPLES = Path(__file__).parents[1] / "examples"
EDGE_TYPES = [("a.x", "to", "b"), ("b", "rev_to", "a.x"), ("b", "self", "b"), ("c", "to", "b")]
WIDTH = 4


@pytest.fixture
def models(monkeypatch):
    """The module examples/hetero_graphsage.py."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import hetero_graphsage

    return hetero_graphsage


def random_block(num_src: int, num_dst: int, rng: torch.Generator) -> dp.Block:
    counts = torch.randint(0, 3, (num_dst,), generator=rng)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return dp.Block(indptr, torch.randint(0, num_src, (int(indptr[-1]),), generator=rng), num_src)


def random_hop(num_src: dict[str, int], num_dst: dict[str, int], rng: torch.Generator) -> dict:
    return {each: random_block(num_src[each[0]], num_dst[each[2]], rng) for each in EDGE_TYPES}


def plain(layer, models, hop, h, num_out):
    """A layer node by node."""
    normed = {kind: torch.relu(layer.norms[models._key(kind)](rows)) for kind, rows in h.items()}
    out = {}
    for kind, count in num_out.items():
        rows = []
        for node in range(count):
            row = layer.own[models._key(kind)](normed[kind][node])
            for (src, relation, dst), block in hop.items():
                if dst == kind and node < block.num_dst:
                    neighbors = block.indices[block.indptr[node] : block.indptr[node + 1]]
                    if len(neighbors):
                        row = row + layer.maps[models._key(src, relation, dst)](normed[src][neighbors].mean(0))
            rows.append(row)
        out[kind] = torch.stack(rows) if rows else torch.zeros(0, layer.own[models._key(kind)].out_features)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_the_model_equals_one_that_goes_node_by_node(models, seed):
    rng = torch.Generator().manual_seed(seed)
    outer = {"a.x": 5, "b": 7, "c": 3}
    inner = {"a.x": 3, "b": 4, "c": 2}
    seeds = {"a.x": 0, "b": 2, "c": 0}
    # No relation ends in c: its nodes of the inner hop are sources there, and destinations nowhere.
    hops = [random_hop(outer, inner, rng), random_hop(inner, seeds, rng)]
    torch.manual_seed(seed)
    encoders = {
        "a.x": models.NodeVectors(9, WIDTH),
        "b": torch.nn.Linear(2, WIDTH),
        "c": models.TypeVector(WIDTH),
    }
    model = models.HeteroGraphSAGE(encoders, [WIDTH, WIDTH, 3], EDGE_TYPES, "b", dropout=0.5).eval()
    features = {"a.x": torch.randperm(9)[:5], "b": torch.randn(7, 2), "c": torch.arange(3)}
    h = {kind: encoders[kind](rows) for kind, rows in features.items()}
    for layer, hop, num_out in zip(model.layers, hops, [inner, {"b": 2}], strict=True):
        h = plain(layer, models, hop, h, num_out)
    assert torch.allclose(model(hops, features), h["b"], atol=1e-6)


def test_every_parameter_gets_a_gradient(models):
    rng = torch.Generator().manual_seed(0)
    num, seeds = {"a.x": 30, "b": 30, "c": 30}, {"a.x": 0, "b": 30, "c": 0}
    encoders = {kind: models.TypeVector(WIDTH) for kind in num}
    model = models.HeteroGraphSAGE(encoders, [WIDTH, WIDTH, 3], EDGE_TYPES, "b", dropout=0.0)
    hops = [random_hop(num, num, rng), random_hop(num, seeds, rng)]
    model(hops, {kind: torch.arange(30) for kind in num}).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
