"""MiniBatch.to_pyg where nodes have types: what PyG's own NeighborLoader gives, and what models make of it."""

import pytest
import torch
from pyg_cases import torch_geometric
from pyg_twin import sampled_by_pyg
from sampling import pyg_expectations
from sampling.pyg_expectations import CASES
from slow_hetero import (
    BY,
    CITES,
    NUM_EDGES,
    NUM_NODES,
    OF,
    WRITES,
    SlowSampler,
    every,
    hetero_graph,
    hetero_store,
    slow_sampled,
    typed_items,
)

import datapipes as dp

# PyG reads annotations in a way that Python 3.13 calls deprecated. ByRelation does itself what HeteroConv misses.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There exist node types .* do not get updated:UserWarning"),
]

NAMES = {node_type: ["feat"] for node_type in NUM_NODES}
WEIGHTS = {edge_type: ["weight"] for edge_type in NUM_EDGES}
SEEDS = [
    {"paper": [3, 0, 8]},
    {"paper": [3, 0, 3, 11, 0, 0]},
    {"author": [2, 2], "field": [1], "paper": [5]},
    {"field": [3, 0, 3]},
]


def chain(seeds=SEEDS[0], num_hops=2, dtype=torch.int64, edge_names=WEIGHTS, **arguments) -> dp.Stage:
    sampler = SlowSampler(typed_items(seeds), hetero_graph(dtype), [every(-1)] * num_hops, **arguments)
    return sampler.fetch_feature(hetero_store(), NAMES, edge_names)


def minibatch_of(*args, **arguments) -> dp.MiniBatch:
    return next(iter(chain(*args, **arguments)))


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize(("num_hops", "dtype"), [(1, torch.int64), (2, torch.int32), (3, torch.int64)])
def test_full_fanouts_give_what_pygs_own_sampler_gives(seeds, frontier, num_hops, dtype):
    data = minibatch_of(seeds, num_hops, dtype, frontier=frontier).to_pyg()
    nodes, edges, edge_ids, num_nodes, num_edges = sampled_by_pyg(hetero_graph(), seeds, num_hops)
    store = hetero_store()
    assert (data.node_types, data.edge_types) == (sorted(nodes), sorted(edges))
    for node_type, ids in nodes.items():
        of_type = data[node_type]
        assert of_type.n_id.tolist() == ids
        assert of_type.n_id.dtype == dtype
        assert of_type.num_sampled_nodes == num_nodes[node_type]
        assert of_type.num_nodes == len(ids)
        assert torch.equal(of_type.x, store["node", node_type, "feat"].tensor[of_type.n_id])
    for edge_type in edges:
        of_type = data[edge_type]
        assert of_type.edge_index.T.tolist() == edges[edge_type]
        assert of_type.edge_index.dtype == torch.int64
        assert of_type.e_id.tolist() == edge_ids[edge_type]
        assert of_type.num_sampled_edges == num_edges[edge_type]
        assert torch.equal(of_type.weight, store["edge", edge_type, "weight"].tensor[of_type.e_id])
    for node_type, ids in seeds.items():
        assert data[node_type].batch_size == len(ids)
        assert data[node_type].n_id[data[node_type].seed_local_id].tolist() == ids
    assert {node_type for node_type in nodes if "batch_size" in data[node_type]} == {*seeds}


def by_core(source: dp.Stage, graph, fanouts, frontier: str) -> dp.Stage:
    return source.sample_neighbor(graph, fanouts, frontier=frontier, return_edge_ids=True)


@pytest.mark.parametrize("seeds", [*SEEDS, {CITES: [[1, 2], [2, 2]], OF: [[0, 1]]}], ids=str)
@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_the_samplers_minibatch_is_that_of_the_slow_one_these_tests_run_over(seeds, frontier, dtype):
    source, fanouts = typed_items(seeds), [every(-1), {CITES: -1, OF: -1}, every(-1)]
    expected = next(iter(SlowSampler(source, hetero_graph(dtype), fanouts, frontier)))
    found = next(iter(by_core(source, hetero_graph(dtype), fanouts, frontier)))
    assert found.digest() == expected.digest()


RECORDED = [  # with the frontier "all" other in-edges in a later hop are refused
    pytest.param(case, frontier, id=f"{case.name}-{frontier}")
    for case in CASES
    for frontier in ("all", "new")
    if frontier == "new" or case.keeps_all
]


@pytest.mark.parametrize("sampler", [by_core, SlowSampler], ids=["core", "slow"])
@pytest.mark.parametrize(("case", "frontier"), RECORDED)
def test_recorded_samples_of_pyg_are_what_to_pyg_gives(case, frontier, sampler):
    graph = pyg_expectations.hetero_graph(case.graph)
    data = next(iter(sampler(typed_items(case.seeds), graph, case.stage_fanouts(), frontier))).to_pyg()
    nodes = {kind: data[kind].n_id for kind in data.node_types}
    edges = {}
    for kind, edge_index in data.edge_index_dict.items():
        ends = nodes[kind[0]][edge_index[0]], nodes[kind[2]][edge_index[1]], data[kind].e_id
        edges[kind] = [*zip(*(end.tolist() for end in ends), strict=True)]
    drawn = {kind for kind, fanouts in case.fanouts.items() if any(fanouts)}
    assert {kind: ids.tolist() for kind, ids in nodes.items()} == case.nodes
    assert edges == {kind: case.edges[kind] for kind in drawn}
    assert data.num_sampled_nodes_dict == case.num_sampled_nodes
    assert data.num_sampled_edges_dict == {kind: case.num_sampled_edges[kind] for kind in drawn}


# --- models


def whole_graph() -> tuple[dict, dict]:
    """x_dict and edge_index_dict of all nodes and edges."""
    graph, store = hetero_graph(), hetero_store()
    edges = {}
    for edge_type in graph.edge_types:
        relation = graph.relation(edge_type)
        destinations = torch.repeat_interleave(torch.arange(NUM_NODES[edge_type[2]]), relation.indptr.diff())
        edges[edge_type] = torch.stack((relation.indices, destinations))
    return {node_type: store["node", node_type, "feat"].tensor for node_type in NUM_NODES}, edges


class ByRelation(torch.nn.Module):
    """HeteroConv layers in float64; a type that nothing points to goes through a map of its own."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(
                torch_geometric.nn.HeteroConv(
                    {edge_type: torch_geometric.nn.SAGEConv((3, 3), 3) for edge_type in NUM_EDGES}
                ).double()
                for _ in range(num_layers)
            )
            self.alone = torch.nn.ModuleDict({node_type: torch.nn.Linear(3, 3).double() for node_type in NUM_NODES})

    def forward(self, x, edge_index, trimmed=None):
        for number, layer in enumerate(self.layers):
            if trimmed is not None:
                x, edge_index, _ = torch_geometric.utils.trim_to_layer(number, *trimmed, x, edge_index)
            out = layer(x, edge_index)
            x = {kind: out[kind].tanh() if kind in out else self.alone[kind](x[kind]).tanh() for kind in x}
        return x


class Plain(torch.nn.Module):
    """Two layers that know no types; to_hetero makes one with types of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch_geometric.nn.SAGEConv((3, 3), 4)
        self.conv2 = torch_geometric.nn.SAGEConv((4, 4), 2)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


def expect_seeds_of_the_whole(data, of_minibatch, of_whole, seeds) -> None:
    for node_type, ids in seeds.items():
        found = of_minibatch[node_type][: data[node_type].batch_size]
        assert torch.allclose(found, of_whole[node_type][ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("num_hops", [1, 3])
def test_hetero_conv_gives_the_seeds_what_it_gives_them_in_the_whole_graph(seeds, frontier, num_hops):
    data, model = minibatch_of(seeds, num_hops, frontier=frontier).to_pyg(), ByRelation(num_hops)
    of_whole = model(*whole_graph())
    counts = data.num_sampled_nodes_dict, data.num_sampled_edges_dict
    for trimmed in (None, counts):
        expect_seeds_of_the_whole(data, model(data.x_dict, data.edge_index_dict, trimmed), of_whole, seeds)


@pytest.mark.parametrize("seeds", SEEDS[:2], ids=str)
def test_a_model_of_to_hetero_gives_the_seeds_what_it_gives_them_in_the_whole_graph(seeds):
    kinds = (["author", "paper"], [WRITES, BY, CITES])  # to_hetero wants edges to every node type
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch_geometric.nn.to_hetero(Plain(), kinds).double()
    data = minibatch_of(seeds).to_pyg()
    x, edges = whole_graph()
    of_whole = model({kind: x[kind] for kind in kinds[0]}, {kind: edges[kind] for kind in kinds[1]})
    x, edges = data.x_dict, data.edge_index_dict
    of_minibatch = model({kind: x[kind] for kind in kinds[0]}, {kind: edges[kind] for kind in kinds[1]})
    expect_seeds_of_the_whole(data, of_minibatch, of_whole, seeds)


# --- seeds


def test_what_belongs_to_the_seeds_is_with_their_type():
    fields = {
        "labels": {"paper": [0, 1, 1]},
        "indexes": {"paper": [7, 8, 9]},
        "timestamps": {"paper": [1, 2, 3], "author": [4]},
        "weight": {"author": [0.5]},
    }
    source = typed_items({"paper": [3, 3, 0], "author": [1]}, **fields)
    minibatch = next(iter(SlowSampler(source, hetero_graph(), [every(-1)])))
    trees = {node_type: torch.arange(len(ids)) for node_type, ids in minibatch.input_nodes.items()}
    data = minibatch.replace(batch=trees).to_pyg()
    paper, author = data["paper"], data["author"]
    assert (paper.y.tolist(), paper.input_id.tolist(), paper.seed_time.tolist()) == ([0, 1, 1], [7, 8, 9], [1, 2, 3])
    assert (author.seed_time.tolist(), author.weight.tolist()) == ([4], [0.5])
    assert (paper.batch_size, author.batch_size) == (3, 1)
    assert not {"y", "input_id"} & {*author.keys()}
    for node_type, ids in minibatch.input_nodes.items():
        assert torch.equal(ids[data[node_type].batch], data[node_type].n_id)


@pytest.mark.parametrize("edge_types", [[WRITES], [CITES], [WRITES, CITES, OF]], ids=str)
def test_pairs_become_edge_label_index_and_edge_label_of_their_type(edge_types):
    pairs = {edge_type: [[3, 0], [0, 2], [3, 3]] for edge_type in edge_types}
    labels = {edge_type: [1, 0, number] for number, edge_type in enumerate(edge_types)}
    times = {edge_types[0]: [10, 20, 30]}
    data = next(iter(slow_sampled(pairs, fields={"labels": labels, "timestamps": times}))).to_pyg()
    for edge_type in edge_types:
        of_type = data[edge_type]
        found = [data[edge_type[2 * side]].n_id[of_type.edge_label_index[side]].tolist() for side in (0, 1)]
        assert found == torch.tensor(pairs[edge_type]).T.tolist()
        assert of_type.edge_label.tolist() == labels[edge_type]
        assert "batch_size" not in of_type
    assert data[edge_types[0]].edge_label_time.tolist() == [10, 20, 30]
    assert not any("y" in data[node_type] or "batch_size" in data[node_type] for node_type in data.node_types)
    for node_type in data.node_types:
        assert len(data[node_type].n_id.unique()) == sum(data[node_type].num_sampled_nodes)


def test_pairs_of_a_type_that_no_hop_draws_are_there():
    minibatch = next(iter(slow_sampled({OF: [[3, 0]]}, [{CITES: -1}])))
    data = minibatch.to_pyg()
    assert data["field"].num_sampled_nodes == [1, 0]
    assert data[OF].edge_label_index.tolist() == [[0], [0]]
    assert [*data.edge_index_dict] == [CITES]


def test_seeds_that_a_stage_dropped_or_turned_round_keep_their_rows():
    minibatch, model = minibatch_of(SEEDS[0]), ByRelation(2)
    places = torch.tensor([2, 1])
    turned = {name: {"paper": getattr(minibatch, name)["paper"][places]} for name in ("seeds", "compacted_seeds")}
    data = minibatch.replace(**turned).to_pyg()
    assert data["paper"].num_sampled_nodes[0] == 3
    seeds = {"paper": [8, 0]}
    assert data["paper"].n_id[:2].tolist() == seeds["paper"]
    of_whole = model(*whole_graph())
    for trimmed in (None, (data.num_sampled_nodes_dict, data.num_sampled_edges_dict)):
        expect_seeds_of_the_whole(data, model(data.x_dict, data.edge_index_dict, trimmed), of_whole, seeds)


def test_types_may_have_names_of_pygs_own_and_of_relations():
    names = {"batch": 2, "writes": 3, "a.b:c": 1}
    relations = {
        ("writes", "batch", "batch"): ([0, 2, 3], [0, 1, 2]),
        ("a.b:c", "writes", "writes"): ([0, 0, 0, 1], [0]),
    }
    given = {edge_type: tuple(map(torch.tensor, arrays)) for edge_type, arrays in relations.items()}
    graph = dp.HeteroCSCGraph(given, names)
    data = next(iter(SlowSampler(typed_items({"batch": [1]}), graph, [dict.fromkeys(relations, -1)] * 2))).to_pyg()
    assert {kind: data[kind].n_id.tolist() for kind in names} == {"batch": [1], "writes": [2], "a.b:c": [0]}
    assert data["writes", "batch", "batch"].edge_index.tolist() == [[0], [0]]


# --- refused


def test_a_later_hop_that_draws_other_in_edges_is_refused_with_its_type(refuses):
    for fanouts in ([every(1), every(2)], [every(-1), {CITES: 0}]):
        refuses(ValueError, next(iter(slow_sampled(fanouts=fanouts, frontier="all"))).to_pyg)
    same = next(iter(slow_sampled(fanouts=[{CITES: -1, WRITES: 0}, {CITES: -1}], frontier="all"))).to_pyg()
    assert same.edge_types == [CITES]


def of_nodes(minibatch: dp.MiniBatch, node_type: str, *names: str) -> dict:
    return {(node_type, name): torch.ones(len(minibatch.input_nodes[node_type])) for name in names}


def test_what_to_pyg_refuses_with_its_type(refuses):
    minibatch = next(iter(slow_sampled(fanouts=[every(1), every(2)])))
    num_edges = minibatch.blocks[0][CITES].num_edges
    for change in (
        {"labels": {"paper": torch.ones(3)}},
        {"extra": {"w": {"paper": torch.ones(2)}}},
        {"seeds": {"paper": minibatch.seeds["paper"][:2]}},
        {"compacted_seeds": None},
        {"node_features": {("author", "w"): torch.ones(99)}},
        {"edge_features": [{(CITES, "w"): torch.ones(1)}, {}]},
        {"edge_features": [{(CITES, "w"): torch.ones(num_edges)}, {}]},
        {"node_features": of_nodes(minibatch, "field", "feat", "x")},
        {"node_features": of_nodes(minibatch, "field", "n_id")},
        {"node_features": of_nodes(minibatch, "paper", "w"), "extra": {"w": {"paper": torch.ones(4)}}},
        {"blocks": None},
        {"blocks": []},
    ):
        refuses(ValueError, minibatch.replace(**change).to_pyg)
    refuses(IndexError, minibatch.replace(compacted_seeds={"paper": minibatch.compacted_seeds["paper"] + 4}).to_pyg)


def test_hops_are_left_out_where_negatives_may_be_nodes_of_either_end():
    graph = dp.HeteroCSCGraph.from_edge_index(
        {WRITES: torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])}, {"author": 5, "paper": 5}
    )
    items = dp.HeteroItemSet({WRITES: dp.ItemSet(torch.tensor([[0, 0], [0, 1], [0, 2]]))})

    def negatives_are(node):
        def sample(pairs, rng, edge_type, timestamps):
            return torch.stack((torch.full((len(pairs),), node), pairs[:, 1]), 1)

        pipe = dp.ItemSampler(items, 3).sample_negative(1, sample, corrupt="src", form="rows")
        return next(iter(pipe.sample_neighbor(graph, [2]))).to_pyg()["author"]

    assert negatives_are(4).num_sampled_nodes[0] == 2
    assert negatives_are(0).num_sampled_nodes[0] == 1
    assert "num_sampled_nodes" not in negatives_are(1)  # author 1 and paper 1 have the same local id


@pytest.mark.parametrize("corrupt", ["src", "dst"])
@pytest.mark.parametrize("fanouts", [[{WRITES: -1, CITES: -1}] * 2, [{WRITES: 2, CITES: 2, BY: 2}]])
def test_nodes_of_negatives_are_seeds_of_the_type_that_is_drawn(corrupt, fanouts):
    graph = hetero_graph()
    pipe = dp.ItemSampler(dp.ItemSet.of_edges(graph, WRITES), 6, shuffle=True, seed=2)
    pipe = pipe.sample_uniform_negative(graph, 3, corrupt=corrupt, form="rows").sample_neighbor(graph, fanouts)
    for minibatch in pipe:
        seeds, data = minibatch.seeds[WRITES], minibatch.to_pyg()
        of_authors = [0, 2, 3, 4] if corrupt == "src" else [0]
        authors, papers = (seeds[:, [at for at in range(5) if (at in of_authors) == own]].unique() for own in (1, 0))
        assert data["author"].num_sampled_nodes[0] == len(authors)
        assert data["paper"].num_sampled_nodes[0] == len(papers)
