"""Tensors in shared memory pass through a socket as descriptors; a sender that ends in between is noticed."""

import multiprocessing

import pytest
import torch

from datapipes.datasets import share_memory
from datapipes.datasets.tfrecord import children
from datapipes.datasets.tfrecord.children import receive_tensors, send_descriptors, shared_forms


@pytest.fixture
def pipe():
    here, there = multiprocessing.Pipe()
    with here, there:
        yield here, there


@pytest.mark.parametrize("at_once", [1, 2, 250])
def test_tensors_arrive_in_the_memory_of_the_sender(pipe, monkeypatch, at_once):
    monkeypatch.setattr(children, "MOST_AT_ONCE", at_once)
    here, there = pipe
    shared = share_memory(torch.arange(6.0))
    tensors = [shared, torch.arange(8).view(2, 4).T, shared.view(2, 3)[1], torch.empty(0, 3), torch.tensor(5).bool()]
    forms, descriptors, kept = shared_forms(tensors, "here")
    assert len(descriptors) == 3  # two tensors lie in one memory, and one has no values
    send_descriptors(there, descriptors)
    found = receive_tensors(here, forms)
    assert [(each.dtype, each.tolist()) for each in found] == [(each.dtype, each.tolist()) for each in tensors]
    shared[4] = 9.0
    assert found[0][4] == found[2][1] == 9.0
    kept[1][0, 0] = 7
    assert found[1][0, 0] == 7


def test_a_sender_that_has_ended_is_noticed(pipe, monkeypatch, refuses):
    monkeypatch.setattr(children, "MOST_AT_ONCE", 1)
    here, there = pipe
    forms, descriptors, _ = shared_forms([torch.ones(3), torch.ones(2)], "here")
    send_descriptors(there, descriptors[:1])
    there.close()
    refuses(EOFError, receive_tensors, here, forms)


def test_a_sender_that_sends_nothing_is_not_waited_for_without_end(pipe, monkeypatch):
    monkeypatch.setattr(children, "WAIT_S", 0.01)
    forms, _, _ = shared_forms([torch.ones(3)], "here")
    with pytest.raises(TimeoutError):
        receive_tensors(pipe[0], forms)
