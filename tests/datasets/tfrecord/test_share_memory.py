"""share_memory: tensors that other processes map without a copy; test_torch_memory.py writes from several processes."""

import torch

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


def test_none_stays_none_and_a_gradient_is_not_shared():
    assert share_memory(None) is None
    shared = share_memory(torch.ones(3, requires_grad=True))
    assert not shared.requires_grad
    assert shared.tolist() == [1, 1, 1]


def test_others_are_refused(refuses):
    for other in ([torch.ones(3)], {"a": 5}, {"a": {"b": torch.ones(1)}}, torch.eye(2).to_sparse()):
        refuses(TypeError, share_memory, other)
    refuses(ValueError, share_memory, torch.empty(3, device="meta"))
