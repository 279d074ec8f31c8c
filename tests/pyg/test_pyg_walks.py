"""random_walk of torch-cluster, and PyG's models of walks, over this package's walks."""

import copy

import torch
from pyg_cases import pyg

import datapipes as dp
from datapipes.pyg import MetaPath2Vec, Node2Vec, random_walk

ROW, COL = torch.tensor([4, 0, 0, 1, 2, 0]), torch.tensor([0, 1, 2, 2, 3, 2])  # 3 has no out-edges


def test_walks_go_along_out_edges_and_stay_where_there_are_none():
    start = torch.arange(5).repeat(40)
    nodes, edges = random_walk(ROW, COL, start, 4, seed=1, return_edge_indices=True)
    assert nodes.dtype == edges.dtype == torch.int64
    assert torch.equal(nodes[:, 0], start)
    stays = edges < 0
    assert torch.equal(stays, nodes[:, :-1] == 3)
    assert bool((nodes[:, 1:] == torch.where(stays, 3, COL[edges])).all())
    assert torch.equal(nodes[:, :-1][~stays], ROW[edges[~stays]])
    assert {*edges[start == 0, 0].tolist()} == {1, 2, 5}  # a start that repeats has walks of its own
    assert random_walk(ROW, COL, start, 0).tolist() == start[:, None].tolist()
    assert random_walk(ROW[:0], COL[:0], start[:0], 4).shape == (0, 5)


def test_walks_are_those_of_the_stage_over_the_reversed_graph():
    edges = torch.randint(0, 30, (2, 200), generator=torch.Generator().manual_seed(2))
    edges[1, :30] = edges[0, :30].add(1) % 30  # no dead ends
    graph = dp.CSCGraph.from_edge_index(edges.flip(0), 30)
    stage = dp.ItemSampler(dp.ItemSet(30), 30).sample_random_walk(graph, 6, p=0.5, q=4.0)
    key = dp.stages.RngKey(9, 0, 0, 0)
    expected, _ = graph.drawn(stage.plan, torch.arange(30), stage.plan.keys(key))
    found = random_walk(*edges, torch.arange(30), 6, 0.5, 4.0, seed=9)
    ended = expected[:, 0] < 0
    assert torch.equal(found[~ended], expected[:, 0][~ended].long())


def test_a_seed_decides_and_else_torchs_generator():
    def drawn(**options):
        return random_walk(ROW, COL, torch.zeros(50, dtype=torch.int64), 1, **options).tolist()

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    torch.manual_seed(3)
    first, second = drawn(), drawn()
    torch.manual_seed(3)
    assert [drawn(), drawn()] == [first, second]
    assert first != second


def test_p_and_q_ask_for_edges_from_the_node_before():
    row, col = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 2, 0, 2, 3])
    walks = random_walk(row, col, torch.zeros(60, dtype=torch.int64), 2, p=1e15, q=1e15, seed=0)
    assert {*map(tuple, walks[walks[:, 1] == 1].tolist())} == {(0, 1, 2)}  # 0 has an edge to 2


def test_what_is_no_walk_is_refused(refuses):
    start = torch.tensor([0])
    refuses(ValueError, random_walk, ROW, COL, start, 2, coalesced=False)
    random_walk(*torch.stack((ROW, COL))[:, ROW.argsort()], start, 2, coalesced=False)
    refuses(TypeError, random_walk, ROW.float(), COL.float(), start, 2)
    refuses(IndexError, random_walk, ROW, COL, torch.tensor([7]), 2, num_nodes=5)
    refuses(IndexError, random_walk, ROW, COL, start, 2, num_nodes=3)
    refuses(ValueError, random_walk, ROW, COL, start, 2, p=0)
    refuses(ValueError, random_walk, ROW, COL, start, -1)
    refuses(ValueError, random_walk, ROW, COL, start, 2, seed=-1)
    refuses(ValueError, Node2Vec, torch.stack((ROW, COL)), 4, walk_length=2, context_size=3)


def test_walks_of_node2vec_are_those_of_random_walk():
    row, col = torch.randint(0, 20, (2, 80), generator=torch.Generator().manual_seed(4))
    model = Node2Vec(torch.stack((row, col)), 4, walk_length=6, context_size=2, p=0.1, q=8.0, num_nodes=20)
    start = torch.arange(20)
    for model.p, model.q in ((0.1, 8.0), (9.0, 0.1)):  # those of the constructor, and others
        torch.manual_seed(2)
        found = model.random_walk_fn(model.rowptr, model.col, start, model.walk_length, model.p, model.q)
        torch.manual_seed(2)
        assert torch.equal(found, random_walk(row, col, start, 5, model.p, model.q, num_nodes=20))


def test_node2vec_learns_from_walks_along_its_edges():
    torch.manual_seed(0)
    ring = torch.stack((torch.arange(12), torch.arange(1, 13) % 12))
    edges = torch.cat((ring, ring.flip(0)), 1)
    model = Node2Vec(edges, 8, walk_length=4, context_size=3, walks_per_node=2, p=0.5, q=2.0, sparse=True)
    assert isinstance(model, pyg.nn.Node2Vec)
    optimizer = torch.optim.SparseAdam([*model.parameters()], lr=0.1)
    allowed, losses = {*zip(*edges.tolist(), strict=True)}, []
    for _ in range(20):
        for positive, negative in model.loader(batch_size=12, shuffle=True):
            assert positive.shape[1] == negative.shape[1] == 3
            assert {*map(tuple, positive[:, :2].tolist())} <= allowed
            optimizer.zero_grad()
            loss = model.loss(positive, negative)
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    torch.manual_seed(1)
    expected = model.pos_sample(torch.arange(5))
    torch.manual_seed(1)
    assert torch.equal(copy.deepcopy(model).pos_sample(torch.arange(5)), expected)
    model.walk_length = 5
    assert len(model.pos_sample(torch.arange(5))) == 5 * 2 * 4


def test_metapath2vec_is_pygs():
    assert MetaPath2Vec is pyg.nn.MetaPath2Vec
