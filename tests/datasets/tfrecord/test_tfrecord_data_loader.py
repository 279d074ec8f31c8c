"""TFRecordDataLoader: the rows of any files on any ranks are those that were written."""

import pytest
import torch
from record_files import columns, edge_info, edges, node_info, nodes, write_files

from datapipes.datasets import TFRecordDataLoader

SIZES = [4, 0, 9, 1, 6]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of nodes and one of edges: plain files and packed ones, one of them without records."""
    made = tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("edges")
    for folder, examples in zip(made, (nodes(20), edges(20)), strict=True):
        write_files(folder, examples, SIZES, packed=[1, 2])
    return made


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_ranks_together_have_what_was_written(folders, world_size):
    loaders = [TFRecordDataLoader(rank, world_size) for rank in range(world_size)]
    loaded = [loader.load_as_torch_tensors(node_info(folders[0])) for loader in loaders]
    written = nodes(20)
    assert torch.equal(torch.cat([each.ids for each in loaded]), torch.tensor(columns(written, ["node_id"])).flatten())
    features = torch.tensor(columns(written, ["one", "wide", "age"]), dtype=torch.float32)
    assert torch.equal(torch.cat([each.features for each in loaded]), features)
    assert torch.equal(torch.cat([each.labels for each in loaded]), torch.tensor(columns(written, ["y"])))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_ranks_together_have_all_edges(folders, world_size):
    loaders = [TFRecordDataLoader(rank, world_size) for rank in range(world_size)]
    loaded = [loader.load_as_torch_tensors(edge_info(folders[1])) for loader in loaders]
    written = edges(20)
    assert torch.equal(torch.cat([each.ids for each in loaded], 1), torch.tensor(columns(written, ["src", "dst"])).T)
    assert torch.equal(torch.cat([each.features for each in loaded]), torch.tensor(columns(written, ["weight"])))
    assert all(each.labels is None for each in loaded)
    assert all(row.is_contiguous() for each in loaded for row in each.ids)


def test_what_was_loaded_unpacks_as_ids_and_features(folders):
    loaded = TFRecordDataLoader(0, 1).load_as_torch_tensors(node_info(folders[0]))
    ids, features = loaded
    assert ids is loaded.ids
    assert features is loaded.features
