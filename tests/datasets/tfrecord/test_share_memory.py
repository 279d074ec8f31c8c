"""share_memory: tensors that other processes map without a copy; test_torch_memory.py writes from several processes."""

import pytest
import torch
from pipelines import refused

from datapipes.datasets import share_memory
from datapipes.processes.sharing import pack


def test_a_tensor_is_copied_once_and_then_stays():
    tensor = torch.arange(10**5).reshape(100, -1)
    shared = share_memory(tensor)
    assert torch.equal(shared, tensor)
    assert shared.is_shared()
    assert not tensor.is_shared(), "what was given is left as it is"
    assert share_memory(shared).data_ptr() == shared.data_ptr()
    pack(shared).unpack()[0, 0] = 77
    assert shared[0, 0] == 77


def test_a_dict_keeps_its_keys_and_order():
    given = {"user": torch.ones(3), ("a", "b", "c"): torch.empty(0, 4), "item": torch.ones(2, dtype=torch.bool)}
    shared = share_memory(given)
    assert list(shared) == list(given)
    assert all(torch.equal(shared[key], given[key]) for key in given)
    assert all(shared[key].is_shared() for key in given if given[key].numel() > 0)


def test_none_stays_none():
    assert share_memory(None) is None


def test_a_gradient_is_not_shared():
    shared = share_memory(torch.ones(3, requires_grad=True))
    assert not shared.requires_grad
    assert shared.tolist() == [1, 1, 1]


BAD = {
    "list": ([torch.ones(3)], TypeError, "the tensor must be a tensor, got"),
    "value": ({"a": 5}, TypeError, "the tensor 'a' must be a tensor, got 5"),
    "nested": ({"a": {"b": torch.ones(1)}}, TypeError, "the tensor 'a' must be a tensor, got"),
    "sparse": (torch.eye(2).to_sparse(), TypeError, "the tensor must be a dense tensor"),
    "meta": (torch.empty(3, device="meta"), ValueError, "the tensor must be in host memory, found it on meta"),
}


@pytest.mark.parametrize(("given", "error", "found"), BAD.values(), ids=BAD)
def test_others_are_refused(given, error, found):
    with refused(error, stage="share_memory: ", found=found, allowed="must be"):
        share_memory(given)
