"""A digest of all that a user sees of PyG's batches and of the outputs of samplers."""

import hashlib
from typing import Any

import numpy as np
import torch
from pyg_cases import Data, HeteroData, pyg
from torch import Tensor


def digest_of(*values: Any) -> str:
    """Return a digest of all that a user sees of batches, or of the outputs of samplers.

    It changes with a class, a name, a type, dtype, shape, layout or value; not with the order in which a batch has its
    types and attributes, nor with where values lie in memory.
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, (Data, HeteroData)):
        stores = {store._key: {**_hidden(store), **store} for store in value.stores}
        _add_all(digest, type(value).__name__, stores)
    elif isinstance(value, (pyg.sampler.SamplerOutput, pyg.sampler.HeteroSamplerOutput)):
        _add_all(digest, type(value).__name__, vars(value))
    elif isinstance(value, dict):
        _add_all(digest, type(value).__name__, value)
    elif isinstance(value, (list, tuple)):
        _add_all(digest, type(value).__name__, dict(enumerate(value)))
    elif isinstance(value, Tensor):
        rest = [value.dtype, [*value.shape], value.layout, value.device.type, value.requires_grad]
        _add_bytes(digest, repr([type(value).__name__, *rest]).encode())
        dense = value.detach().cpu().to_dense()
        flat = dense.new_empty(dense.numel()).copy_(dense.reshape(-1))  # one value alone may have any stride
        _add_bytes(digest, flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        _add_bytes(digest, repr([type(value).__name__, value.dtype.str, value.shape]).encode())
        _add_bytes(digest, value.tobytes())
    elif type(value) in (type(None), bool, int, float, str):
        _add_bytes(digest, f"{type(value).__name__} {value!r}".encode())
    else:
        raise TypeError(f"digest_of: found a {type(value).__name__} in a batch. Add how its bits are told.")


def _hidden(store: Any) -> dict[str, Any]:
    """Return the tensors that a store has as attributes, such as `_orig_edge_index`."""
    return {name: value for name, value in vars(store).items() if isinstance(value, Tensor)}


def _add_all(digest: Any, kind: str, values: dict[Any, Any]) -> None:
    _add_bytes(digest, f"{kind} of {len(values)}".encode())
    for key in sorted(values, key=repr):
        _add_bytes(digest, repr(key).encode())
        _add(digest, values[key])


def _add_bytes(digest: Any, data: bytes) -> None:
    digest.update(f"{len(data)}:".encode() + data)
