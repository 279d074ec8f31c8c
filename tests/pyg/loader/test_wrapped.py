"""PyG's own classes around our loaders, and models that look at them: all work as around PyG's."""

import importlib
import pickle
import warnings

import pytest
import torch
from pyg_cases import Data, assert_same, pyg, random_data, random_hetero

from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader
from datapipes.pyg.sampler import NeighborSampler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch_geometric.nn
    import torch_geometric.utils

pytestmark = [
    pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*positive links:UserWarning"),
]


@pytest.mark.parametrize(
    ("module", "more"),
    [("loader", ["RandomNodeSampler", "utils"]), ("distributed", ["event_loop"]), ("sampler", ["HeteroSamplerOutput"])],
)
def test_all_names_of_pygs_module_are_there_and_those_that_are_not_ours_are_pygs(module, more):
    ours, theirs = (importlib.import_module(f"{of}.{module}") for of in ("datapipes.pyg", "torch_geometric"))
    for name in (*theirs.__all__, *more):
        value = getattr(ours, name)
        exec(f"from {ours.__name__} import {name}")
        assert value is getattr(theirs, name) or value.__module__.startswith("datapipes.")
        assert name in more or pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match=f"'torch_geometric.{module}' has no attribute 'Nonsense'"):
        ours.Nonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec(f"from {ours.__name__} import Nonsense")
    if module != "sampler":
        star = {}
        exec(f"from {ours.__name__} import *", star)
        assert {*dir(ours)} == {*ours.__all__} == star.keys() - {"__builtins__"} >= {*theirs.__all__}


def test_cached_prefetched_and_zipped_loaders_give_the_batches():
    data = random_data(1)
    loader = NeighborLoader(data, [2], batch_size=10, seed=1)
    expected = list(NeighborLoader(data, [2], batch_size=10, seed=1))
    cached = pyg.loader.CachedLoader(loader)
    for _ in range(2):
        for one, other in zip(cached, expected, strict=True):
            assert_same(one, other)
    prefetched = pyg.loader.PrefetchLoader(NeighborLoader(data, [2], batch_size=10, seed=1), device="cpu")
    for one, other in zip(prefetched, expected, strict=True):
        assert_same(one, other)
    parts = [NeighborLoader(data, [2], input_nodes=torch.arange(begin, begin + 20)) for begin in (0, 20)]
    for filter_per_worker in (False, True):
        zipped = pyg.loader.ZipLoader(parts, filter_per_worker=filter_per_worker, batch_size=8)
        for one, other in zipped:
            assert torch.equal(other.n_id[: other.batch_size], one.n_id[: one.batch_size] + 20)
            assert torch.equal(one.x, data.x[one.n_id])


def test_an_imbalanced_sampler_draws_rare_classes_as_often():
    labels = torch.tensor([0] * 10 + [1] * 90)
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), y=labels, num_nodes=100)
    torch.manual_seed(0)
    loader = NeighborLoader(data, [-1], batch_size=10, sampler=pyg.loader.ImbalancedSampler(data))
    drawn = torch.cat([batch.y for batch in loader])
    assert len(drawn) == 100
    assert 30 < int((drawn == 0).sum()) < 70


def test_a_model_of_a_batch_is_that_of_the_whole_graph_at_the_seeds():
    data = random_data(2)
    torch.manual_seed(0)
    model = torch_geometric.nn.GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    expected = model(data.x, data.edge_index)
    for batch in NeighborLoader(data, [-1, -1], batch_size=9):
        sampled = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        whole, trimmed = model(batch.x, batch.edge_index), model(batch.x, batch.edge_index, **sampled)
        for found in (whole, trimmed):  # the second by trim_to_layer
            assert torch.allclose(found[: batch.batch_size], expected[batch.input_id], atol=1e-5)


def test_inference_layer_by_layer_asks_for_a_loader_of_pyg():
    data = random_data(3)
    torch.manual_seed(0)
    model = torch_geometric.nn.GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    only_x = Data(x=data.x, edge_index=data.edge_index)
    loader = NeighborLoader(only_x, [-1], input_nodes=None, batch_size=16)
    found = model.inference(loader, progress_bar=True)
    assert torch.allclose(found, model(data.x, data.edge_index), atol=1e-5)


def test_to_hetero_runs_on_batches_with_types():
    data = random_hetero(4)
    del data["venue"]
    data["author"].x = data["author"].x.float()
    model = torch_geometric.nn.to_hetero(torch_geometric.nn.GraphSAGE((-1, -1), 8, num_layers=2), data.metadata())
    batch = next(iter(NeighborLoader(data, [2, 2], input_nodes="paper", batch_size=6)))
    out = model(batch.x_dict, batch.edge_index_dict)
    assert out["paper"].shape == (batch["paper"].num_nodes, 8)


@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
def test_lightnings_data_modules_sample_by_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pytorch_lightning", reason="PyG's data modules need Lightning")
        from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
    data = random_data(5)
    nodes = LightningNodeData(
        data,
        input_train_nodes=data.train_mask,
        node_sampler=NeighborSampler(data, [3, 2]),
        batch_size=5,
        num_workers=0,
        pin_memory=False,
    )
    seen = [batch.input_id for batch in nodes.train_dataloader()]
    assert sorted(torch.cat(seen).tolist()) == data.train_mask.nonzero().flatten().tolist()
    links = LightningLinkData(
        data,
        input_train_edges=data.edge_index,
        link_sampler=NeighborSampler(data, [3, 2]),
        neg_sampling={"mode": "binary"},
        batch_size=50,
        num_workers=0,
        pin_memory=False,
    )
    batch = next(iter(links.train_dataloader()))
    assert batch.edge_label.tolist() == [1.0] * 50 + [0.0] * 50


def test_a_batch_moves_to_a_device_and_trains_links():
    data = random_data(6)
    loader = LinkNeighborLoader(data, [2, 2], batch_size=40, neg_sampling_ratio=1.0, shuffle=True)
    model = torch_geometric.nn.GraphSAGE(5, 8, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        moved = batch.to("cpu")
        src, dst = model(moved.x, moved.edge_index)[moved.edge_label_index]
        loss = torch.nn.functional.binary_cross_entropy_with_logits((src * dst).sum(-1), moved.edge_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert bool(loss.isfinite())
