"""Convert the edges of each type to the arrays of a HeteroCSCGraph; see convert.py.

The edges of each type are sorted by themselves, so the order of the edge types given does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, shown
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, by_edge_type, check_node_type, known_edge_type, known_node_type
from datapipes.graph.arrays import HeteroArrays
from datapipes.graph.checks import MAX_NODES, check_mapping
from datapipes.graph.convert import check_edge_index, in_order

_WHERE = "from_edge_index"


def from_edge_index(
    edge_index: Any,
    num_nodes: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
    edge_attributes: Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    infer_others: bool = False,
) -> HeteroArrays:
    """See HeteroCSCGraph.from_edge_index. With `infer_others` the edges tell of types that `num_nodes` lacks."""
    form = "{edge type: edge_index}"
    given = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_index", edge_index, form, optional=False))
    edges = {key: check_edge_index(f"edge_index of {key}", value) for key, value in given.items()}
    numbers = check_mapping(_WHERE, "num_nodes", num_nodes, "{node type: number}")
    counts = _num_nodes(edges, numbers, num_nodes is None or infer_others)
    form = "{edge type: {name: values}}"
    attributes = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_attributes", edge_attributes, form))
    for key, values in attributes.items():
        known_edge_type(f"{_WHERE}, edge_attributes", key, edges)
        check_mapping(_WHERE, f"edge_attributes of {key}", values, "{name: values}")
    relations, ids, moved = {}, {}, {}
    for key, columns in edges.items():
        _check_ends(key, columns, counts)
        indptr, indices, order = _sorted_by_destination(columns, counts[key[0]], counts[key[2]])
        relations[key], ids[key] = (indptr, indices), order
        moved[key] = in_order(attributes.get(key), order, f" of {key}")
    return HeteroArrays(relations, counts, ids, node_attributes or {}, moved)


def _num_nodes(edges: Mapping[EdgeType, Tensor], given: Mapping[str, int], infer: bool) -> dict[str, int]:
    """Return the number of nodes of each type as given; of others, with `infer`, the largest id of any edge plus 1."""
    counts = {
        check_node_type(f"{_WHERE}, num_nodes", kind): check_int(_WHERE, f"num_nodes[{kind!r}]", count, 0, MAX_NODES)
        for kind, count in given.items()
    }
    for key, columns in edges.items():
        for kind, row in ((key[0], columns[0]), (key[2], columns[1])):
            if not infer:
                known_node_type(f"{_WHERE}, num_nodes for {key}", kind, given)
            elif kind not in given:
                counts[kind] = max(counts.get(kind, 0), int(row.max()) + 1 if row.numel() > 0 else 0)
    size = sum(
        8 * (counts[key[2]] + 1 + columns.shape[1]) + columns.shape[1] * columns.element_size()
        for key, columns in edges.items()
    )
    remedy = "Renumber the nodes: an id far above their number costs memory too."
    check_memory(_WHERE, f"a graph of {shown(counts)} nodes", size, remedy)
    return counts


def _check_ends(key: EdgeType, columns: Tensor, counts: Mapping[str, int]) -> None:
    """Refuse an edge whose source or destination is no node of its type."""
    for row, kind in ((0, key[0]), (1, key[2])):
        ends, count = columns[row], counts[kind]
        if ends.numel() == 0 or (int(ends.min()) >= 0 and int(ends.max()) < count):
            continue
        column = int(((ends < 0) | (ends >= count)).nonzero()[0])
        raise IndexError(
            f"{_WHERE}: edge_index of {key} has {int(ends[column])} at [{row}, {column}], which must be in "
            f"[0, {count}), the nodes of {kind!r}. Raise num_nodes or drop the edge."
        )


def _sorted_by_destination(columns: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (indptr [num_dst + 1], indices, order); all ends have been checked."""
    src, dst = columns[0].contiguous().numpy(), columns[1].contiguous().numpy()
    if num_src <= num_dst:
        indptr, indices, order = _core.coo_to_csc(src, dst, num_dst)
    else:  # the kernel would refuse the sources, so it sorts the destinations alone
        indptr, _, order = _core.coo_to_csc(dst, dst, num_dst)
        indices = src[order]
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(order)
