"""The model of the examples for heterogeneous graphs, on blocks made here."""

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from example_data import EXAMPLES

import datapipes as dp

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


def task_of_relations(num_nodes: int) -> dp.datasets.Dataset:
    """Two classes of nodes without a hint of their own: the class is the word of the node that "said" goes from."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (num_nodes,), generator=rng)
    nodes = torch.arange(num_nodes)
    graph = dp.HeteroCSCGraph.from_edge_index(
        {
            ("word", "said", "node"): torch.stack([labels, nodes]),
            ("word", "unsaid", "node"): torch.stack([1 - labels, nodes]),
            ("node", "rev_said", "word"): torch.stack([nodes, labels]),
        },
        {"word": 2, "node": num_nodes},
    )
    features = dp.FeatureStore({("node", "word", "feat"): dp.TensorFeature(torch.eye(2))})
    parts = torch.randperm(num_nodes, generator=rng).split(num_nodes // 3)
    sets = [dp.HeteroItemSet({"node": dp.ItemSet((ids, labels[ids]), names=("seeds", "labels"))}) for ids in parts]
    return dp.datasets.Dataset("relations", graph, features, *sets, num_classes=2, class_names=("a", "b"))


def test_training_tells_relations_apart(models):
    import training

    data = task_of_relations(300)
    settings = training.settings_for(data)
    assert settings.own_map
    assert training.target_of(data) == "node"
    assert training.node_keys(data) == {"word": "feat"}
    torch.manual_seed(0)
    model = training.make_model(data, settings)
    pipe = training.pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with dp.DataLoader(pipe) as loader:
        for _ in range(10):
            training.train_epoch(model, loader, optimizer)
    # Both words are neighbors of each node; only the relation says which is which.
    assert training.evaluate(model, data, data.test_set) == 1


def test_where_no_node_has_features_each_has_a_vector(models):
    import training

    data = replace(task_of_relations(30), features=dp.FeatureStore({}))
    model = training.make_model(data, training.settings_for(data))
    found = {name: type(encoder) for name, encoder in model.encoders.items()}
    assert found == {"type node": models.NodeVectors, "type word": models.NodeVectors}
    with pytest.raises(ValueError, match="own_map is False, must be True"):
        training.make_model(data, training.Settings(own_map=False))


# The example over files: RDF names no nodes for validation.


def write_rdf(folder: Path) -> Path:
    """Write 40 people, each a member of a club whose colour is their label; the label itself is nowhere."""
    triples = [f"<http://p/{i}> <http://x/in> <http://club/{i % 4}> .\n" for i in range(40)]
    triples += [f"<http://club/{c}> <http://x/likes> <http://colour/{c % 2}> .\n" for c in range(4)]
    folder.mkdir()
    (folder / "clubs.nt").write_text("".join(triples))
    for name, people in (("trainingSet", range(30)), ("testSet", range(30, 40))):
        rows = [f"{i}\thttp://p/{i}\thttp://group/{i % 2}\n" for i in people]
        (folder / f"{name}.tsv").write_text("id\tperson\tlabel_affiliation\n" + "".join(rows))
    return folder


def output_of(monkeypatch, capsys, *arguments: str) -> str:
    threads = ["--threads", str(torch.get_num_threads())]  # those of the tests stay
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["hetero_classification.py", "--workers", "0", *threads, *arguments])
    runpy.run_path(str(EXAMPLES / "hetero_classification.py"), run_name="__main__")
    return capsys.readouterr().out


def test_the_example_learns_from_rdf_and_prints_the_mean_of_its_runs(tmp_path, monkeypatch, capsys):
    settings = ["--epochs", "40", "--hidden", "16", "--dropout", "0.2"]  # enough, whatever the first weights are
    output = output_of(monkeypatch, capsys, "--data", str(write_rdf(tmp_path / "clubs")), "--seeds", "2", *settings)
    scores = [float(score) for score in re.findall(r"^test accuracy (\d\.\d{4})$", output, re.MULTILINE)]
    assert len(scores) == 2
    assert min(scores) >= 0.9
    assert f"mean of 2 seeds {sum(scores) / 2:.4f}" in output
    assert "train 30, validation 0, test 10 nodes" in output


def test_the_example_scores_a_part_of_the_training_nodes_on_request(tmp_path, monkeypatch, capsys):
    data = ["--data", str(write_rdf(tmp_path / "clubs")), "--epochs", "2", "--hidden", "8"]
    output = output_of(monkeypatch, capsys, *data, "--validation", "0.2")
    assert len(re.findall(r"^epoch .* validation \d\.\d{4} ", output, re.MULTILINE)) == 2
    assert re.search(r"^validation accuracy \d\.\d{4}$", output, re.MULTILINE)
    assert "test accuracy" not in output
