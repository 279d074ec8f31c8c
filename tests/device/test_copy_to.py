"""CopyTo: every tensor is on the device; a missing device is refused when the chain is built."""

import pytest
import torch
from dist_graphs import small_parts
from fake_device import fake_cuda, train
from pipelines import digests, fetched, items, refused, sampled, small_store
from plain_cuda import on_gpu
from slow_hetero import CITES, hetero_store, slow_sampled

import datapipes as dp
from datapipes.device.copy_to import tensors_of


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
    typed = next(iter(slow_sampled()))
    assert typed.to(device).input_nodes["paper"] is typed.input_nodes["paper"]


def typed_fetched() -> dp.Stage:
    fields = {"labels": {"paper": [0, 1, 1]}, "weight": {"paper": [0.5, 1.0, 2.0]}}
    sampler = slow_sampled({"paper": [3, 0, 8], "author": [2]}, fields=fields)
    return sampler.fetch_feature(hetero_store(), {"paper": ["feat"]}, {CITES: ["weight"]})


@pytest.mark.parametrize("chain", [fetched, typed_fetched])
def test_every_tensor_is_copied(chain):
    message = next(iter(chain().copy_to("meta"))).to_message()
    assert {tensor.device.type for tensor in message.values() if tensor.ndim > 0} == {"meta"}
    expected = next(iter(chain())).to_message()
    assert {key: tensor.shape for key, tensor in message.items()} == {key: t.shape for key, t in expected.items()}
    assert digests(chain().copy_to("cpu")) == digests(chain())


@on_gpu
def test_what_is_on_the_gpu_has_the_same_digest():
    assert digests(fetched().copy_to("cuda")) == digests(fetched())
    assert digests(dp.DataLoader(fetched().copy_to("cuda"))) == digests(fetched())


@on_gpu
def test_types_go_to_the_gpu_from_page_locked_memory():
    pinned = typed_fetched().transform(dp.MiniBatch.pin_memory)
    (there,) = pinned.copy_to("cuda")
    assert {tensor.device.type for tensor in there.to_message().values() if tensor.ndim > 0} == {"cuda"}
    assert there.digest() == next(iter(pinned)).digest()


@without_cuda
def test_without_cuda_a_copy_to_it_is_refused():
    for device in ("cuda", "cuda:0", "cuda:7", torch.device("cuda")):
        with refused(
            ValueError, stage="copy_to", found="'cuda", allowed="allowed here: 'cpu'", remedy=r"copy_to\('cpu'\)"
        ):
            fetched().copy_to(device)


def test_what_is_no_device_is_refused():
    for device in ("nonsense", "", "cpu:x", "cuda:-2", None, 3.5, ["cpu"], object):
        with refused(ValueError, stage="copy_to", found="got|is", allowed="'cpu'"):
            fetched().copy_to(device)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has an MPS device")
def test_what_copy_to_refuses(refuses):
    for absent in ("mps", "xla", "vulkan"):
        refuses(ValueError, fetched().copy_to, absent)
    refuses(TypeError, fetched().copy_to, "cpu", non_blocking=1)


def test_a_tensor_without_values_is_refused():
    def add(minibatch):
        return minibatch.replace(extra={"k": torch.empty(len(minibatch.seeds), device="meta")})

    with refused(ValueError, stage="MiniBatch.to", found="a tensor without values", allowed="Give it values"):
        next(iter(items().transform(add).copy_to("cpu")))


# --- into the same memory


PADDED = [{"seeds": 5, "nodes": [6, 20, 40], "edges": [20, 50]}]


def padded() -> dp.Stage:
    return sampled().pad([{"seeds": 5, "nodes": [5, 7, 14], "edges": [8, 26]}, *PADDED])


class Awaits(dp.MiniBatchTransformer):
    """An asynchronous stage, which has several minibatches at once."""

    draws = False

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return minibatch.replace()


def addresses(minibatch: dp.MiniBatch) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors_of(minibatch)]


@pytest.mark.parametrize("loader", [False, True])
def test_minibatches_of_a_bucket_are_copied_into_the_same_memory(loader):
    expected = digests(padded().fetch_feature(small_store(), ["feat"]))
    into: dict[int, dp.MiniBatch] = {}
    chain = padded().fetch_feature(small_store(), ["feat"])
    seen = {}
    for minibatch, digest in zip(
        (dp.DataLoader(chain) if loader else chain).copy_to("cpu", into=into), expected, strict=True
    ):
        assert minibatch.digest() == digest
        seen.setdefault(minibatch.bucket, []).append(addresses(minibatch))
        assert addresses(into[minibatch.bucket]) == addresses(minibatch)
    assert {*seen} == {*into} == {0, 1}
    assert all(every == every[:1] * len(every) for every in seen.values())


def test_what_is_copied_into_the_same_memory_of_a_gpu_is_read_before_the_next_overwrites_it():
    expected = digests(padded().fetch_feature(small_store(), ["feat"]))
    for loaded in (False, True):
        found: list[str] = []
        with fake_cuda() as gpu:
            chain = padded().fetch_feature(small_store(), ["feat"])
            into: dict[int, dp.MiniBatch] = {}
            chain = dp.DataLoader(chain.copy_to("cuda")) if loaded else chain
            for minibatch in chain.copy_to("cuda", into=into):
                train(gpu, minibatch, found)
        assert found == expected


def test_what_is_refused_of_memory_that_is_used_again(refuses):
    chain = padded().copy_to("cpu", into={})
    loaded = dp.DataLoader(sampled(graph=small_parts()).pad(PADDED)).copy_to("cpu", into={})
    assert [minibatch.digest() for minibatch in loaded] == digests(sampled().pad(PADDED))
    refuses(TypeError, padded().copy_to, "cpu", into=True)
    refuses(ValueError, dp.DataLoader, chain)
    refuses(ValueError, chain.prefetch)
    refuses(ValueError, next, iter(fetched().copy_to("cpu", into={})))
    into = {}
    list(sampled().pad(PADDED).copy_to("cpu", into=into))
    other = sampled().pad(PADDED).fetch_feature(small_store(), ["feat"])
    refuses(ValueError, next, iter(other.copy_to("cpu", into=into)))
    refuses(ValueError, next, iter(sampled().pad(PADDED).copy_to("meta", into=into)))
    refuses(TypeError, next, iter(sampled().pad(PADDED).copy_to("cpu", into={0: 5})))
    over_parts = sampled(graph=small_parts()).pad(PADDED).copy_to("cpu", into={})
    refuses(ValueError, next, iter(over_parts))
    refuses(ValueError, next, iter(Awaits(dp.DataLoader(sampled().pad(PADDED)).copy_to("cpu", into={}))))
