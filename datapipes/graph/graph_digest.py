"""The digest of a graph, given those of its arrays, and the names of its arrays in digests and errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from datapipes.base.array_digest import array_digest
from datapipes.base.types import EdgeType, NodeType

TOPOLOGY = ("indptr", "indices", "edge_ids")  # kinds of arrays; int32 ids count as int64 ones in their digests


def graph_digest(
    num_nodes: Mapping[NodeType | None, int], relations: Mapping[EdgeType | None, Sequence[str | None]]
) -> str:
    """Return `Graph.digest` of a graph, 32 hexadecimal digits.

    Args:
        num_nodes: {node type: number}, sorted.
        relations: {edge type: the array_digest of each array of TOPOLOGY, None for one that is not there}, sorted.
    """
    facts = [[*num_nodes.items()], [[edge_type, *digests] for edge_type, digests in relations.items()]]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def array_name(kind: str, of: Any, name: str | None = None) -> str:
    """Return the name of an array of a kind, as storage has them, of a type; `name` is that of an attribute."""
    what = kind if kind in TOPOLOGY else f"{kind.removesuffix('s').replace('_', ' ')} {name!r}"
    return what if of is None else f"{what} of {of!r}"


def written_digest(kind: str, values: Tensor) -> str:
    """Return the digest that a folder has of an array of this kind."""
    return array_digest(values, as_int64=kind in TOPOLOGY)
