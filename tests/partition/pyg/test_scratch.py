"""Scratch tensors: files that leave nothing behind."""

import pytest
import torch
from channels import descriptors_from_now
from scripts import run_script

from datapipes.partition.pyg.pyg_write import filled, save, scratch

NUMBERS = [torch.uint8, torch.int64, torch.uint16, torch.uint64, torch.float64]
OTHERS = [torch.bool, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", NUMBERS + OTHERS)
@pytest.mark.parametrize("shape", [(5,), (3, 2), (0, 4), (4, 0), (2, 3, 1)])
def test_a_scratch_tensor_is_zeros_and_holds_what_is_written(tmp_path, dtype, shape):
    found = scratch(tmp_path, shape, dtype)
    assert (found.dtype, tuple(found.shape)) == (dtype, shape)
    assert not bool(found.view(torch.uint8).any())
    values = torch.arange(found.numel()).view(shape).to(dtype)
    made = filled(tmp_path, shape, dtype, [values[:1], values[1:]])
    assert made.tolist() == values.tolist()
    assert made.untyped_storage().nbytes() == made.nbytes  # torch.save writes all of it
    if torch.__version__.startswith("2.4.") and dtype in (torch.uint16, torch.uint64):
        pytest.skip("torch 2.4 saves no unsigned numbers of more than a byte; a part that has some is refused")
    save({"made": made}, tmp_path / "made.pt")
    assert torch.load(tmp_path / "made.pt", weights_only=True)["made"].tolist() == values.tolist()
    assert [each.name for each in tmp_path.iterdir()] == ["made.pt"]


def test_scratch_tensors_hold_no_descriptors_and_no_names(tmp_path):
    opened = descriptors_from_now()
    kept = [scratch(tmp_path, (10,), torch.int64) for _ in range(50)]
    assert opened() == 0
    assert not list(tmp_path.iterdir())
    assert [int(each.sum()) for each in kept] == [0] * 50


def test_a_graph_of_many_types_is_written_with_few_descriptors(tmp_path):
    script = f"""
import resource, torch
import datapipes as dp
from datapipes.distributed import Partitioner
edges = {{("n", f"r{{i}}", "n"): (torch.arange(0, 11), torch.arange(10)) for i in range(40)}}
graph = dp.HeteroCSCGraph(edges, {{"n": 10}})
partitioner = Partitioner(graph, 2, {str(tmp_path / "parts")!r}, method="range", layouts=("pyg",))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
partitioner.generate_partition()
"""
    ended = run_script(script)
    assert ended.returncode == 0, ended.stderr
