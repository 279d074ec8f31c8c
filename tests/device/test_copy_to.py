"""CopyTo: every tensor is on the device; a missing device is refused when the chain is built."""

import pytest
import torch
from pipelines import digests, fetched, items, refused
from slow_hetero import CITES, hetero_store, slow_sampled

import datapipes as dp


def contract_chain() -> dp.Stage:
    return fetched().copy_to("cpu")


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return fetched().copy_to("cpu", non_blocking=False), dp.CopyTo(fetched(), "cpu", non_blocking=False)


without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=str)
def test_a_copy_to_the_same_device_shares_the_tensors(device):
    stage = fetched().copy_to(device)
    assert stage.device == torch.device("cpu")
    assert digests(stage) == digests(fetched())
    minibatch = next(iter(fetched()))
    assert stage.transform(minibatch).input_nodes.data_ptr() == minibatch.input_nodes.data_ptr()


def test_every_tensor_is_copied():
    minibatch = next(iter(fetched().copy_to("meta")))
    message = minibatch.to_message()
    assert {tensor.device.type for tensor in message.values() if tensor.ndim > 0} == {"meta"}
    expected = next(iter(fetched())).to_message()
    assert {key: tensor.shape for key, tensor in message.items()} == {key: t.shape for key, t in expected.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_on_the_gpu_has_the_same_digest():
    assert digests(fetched().copy_to("cuda")) == digests(fetched())
    assert digests(dp.DataLoader(fetched().copy_to("cuda"))) == digests(fetched())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_types_go_to_the_gpu_from_page_locked_memory():
    keys = {"paper": ["feat"]}, {CITES: ["weight"]}
    pinned = slow_sampled().fetch_feature(hetero_store(), *keys).transform(dp.MiniBatch.pin_memory)
    (there,) = pinned.copy_to("cuda")
    assert {tensor.device.type for tensor in there.to_message().values() if tensor.ndim > 0} == {"cuda"}
    assert there.digest() == next(iter(pinned)).digest()


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", torch.device("cuda")], ids=str)
def test_without_cuda_a_copy_to_it_is_refused(device):
    with refused(ValueError, stage="copy_to", found="'cuda", allowed="allowed here: 'cpu'", remedy=r"copy_to\('cpu'\)"):
        fetched().copy_to(device)


@pytest.mark.parametrize("device", ["nonsense", "", "cpu:x", "cuda:-2", None, 3.5, ["cpu"], object], ids=str)
def test_what_is_no_device_is_refused(device):
    with refused(ValueError, stage="copy_to", found="got|is", allowed="'cpu'"):
        fetched().copy_to(device)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an MPS device")
@pytest.mark.parametrize("device", ["mps", "xla", "vulkan"])
def test_a_device_of_another_kind_that_is_not_here_is_refused(device):
    with refused(ValueError, stage="copy_to", found=device, allowed="'cpu'"):
        fetched().copy_to(device)


def test_non_blocking_is_a_flag():
    with refused(TypeError, stage="copy_to", found="got 1", allowed="True or False"):
        fetched().copy_to("cpu", non_blocking=1)


def test_a_tensor_without_values_is_refused():
    def add(minibatch):
        return minibatch.replace(extra={"k": torch.empty(len(minibatch.seeds), device="meta")})

    with refused(ValueError, stage="MiniBatch.to", found="a tensor without values", allowed="Give it values"):
        next(iter(items().transform(add).copy_to("cpu")))
