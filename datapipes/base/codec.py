"""The message codec: flat names for nested fields, and the digest of a message (docs/semantics.md, section 5).

A message is a `dict[str, Tensor]`. Channels, servers and digests share this one encoding. Its output changes only
together with STREAM_VERSION (rng.py).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import INT_OF_BYTES, dtype_name

Message = dict[str, torch.Tensor]

_NO_ESCAPE = re.compile("%(?!25|2E|3A)")


def join_key(*parts: str | tuple[str, ...]) -> str:
    """Return the key of a field: its parts, joined by ".". A part is any text, or a tuple of texts (such as an edge
    type), which are joined by ":". Within a text, the characters ".", ":" and "%" are escaped.
    """
    return ".".join([_escaped(part) if isinstance(part, str) else ":".join(map(_escaped, part)) for part in parts])


def split_key(key: str) -> list[str | tuple[str, ...]]:
    """Return the parts of a key: the inverse of `join_key`.

    Raises:
        ValueError: `key` has an escape that `join_key` never writes.
    """
    parts = key.split(".")
    if "%" not in key:
        return [*parts] if ":" not in key else [tuple(part.split(":")) if ":" in part else part for part in parts]
    if _NO_ESCAPE.search(key):
        raise ValueError(f"found the key {key!r}, in which '%' begins none of %25, %2E and %3A")
    return [tuple(map(_unescaped, part.split(":"))) if ":" in part else _unescaped(part) for part in parts]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(".", "%2E").replace(":", "%3A")


def _unescaped(text: str) -> str:
    return text.replace("%2E", ".").replace("%3A", ":").replace("%25", "%")


def digest_message(message: Mapping[str, torch.Tensor]) -> str:
    """Return BLAKE2b (16 bytes, hexadecimal) over the entries in key order: name, dtype, shape and bytes.

    Device and strides do not matter. A tensor on a device is copied to host memory first.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add_ints(*values: int) -> None:
        digest.update(b"".join(value.to_bytes(8, "little", signed=True) for value in values))

    for key in sorted(message, key=lambda name: name.encode()):
        tensor = message[key]
        dtype = dtype_name(tensor.dtype).encode()
        data = flat_bytes(tensor)
        add_ints(len(key.encode()))
        digest.update(key.encode())
        add_ints(len(dtype))
        digest.update(dtype)
        add_ints(tensor.ndim, *tensor.shape, len(data))
        digest.update(data.data)
    return digest.hexdigest()


def flat_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the values of a tensor as row-major, little-endian bytes; a view if they lie so in host memory already."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if sys.byteorder == "big":  # pragma: no cover
        raise RuntimeError(
            "digest: this machine is big-endian; digests are defined little-endian. Use another machine."
        )
    try:
        values = plain.numpy()
    except TypeError:  # NumPy has no such dtype
        values = plain.view(INT_OF_BYTES[plain.element_size()]).numpy()
    # Copied by NumPy: torch would use all its threads, which do not survive a fork.
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
