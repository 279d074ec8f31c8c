"""The seeds of a minibatch as samplers need them: node ids by type, and the groups of the seeds.

Seeds of links are pairs; a sampler starts from the nodes at their ends (docs/semantics.md, section 4.1). A group of
seeds is a tree, or without trees all seeds of one time and time window (sections 4.5 and 4.6). Groups share no nodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import INDEX_DTYPES, dtype_name, how_to_get_ids, shown
from datapipes.base.log import users_frame
from datapipes.base.types import known_edge_type, known_node_type, of_type, type_text
from datapipes.graph.graph import Graph
from datapipes.graph.hops import SeedTrees

MOST_TREES = 2**32  # the limit of the random key's stream

_I64 = NDArray[np.int64]


class SeedIds(NamedTuple):
    """The seeds of a minibatch as node ids by type. `restore` brings values for these ids back into the shapes of the
    seeds.

    Attributes:
        ids: {node type: ids [n]}, repeats included.
        places: where the ids come from, as entries (key, columns, node type, begin, end). An entry says that `ids[node
            type][begin:end]` are these columns of `seeds[key]`, row by row. Columns None means all columns.
        seeds: `seeds` of the minibatch, {node or edge type: ids}.
    """

    ids: dict[Any, Tensor]
    places: list[tuple[Any, list[int] | None, Any, int, int]]
    seeds: dict[Any, Tensor]

    def restore(self, local_ids: dict[Any, Tensor]) -> dict[Any, Tensor]:
        """Return `local_ids`, a value for each of `ids`, in the shapes of `seeds`."""
        restored: dict[Any, Tensor] = {}
        for key, columns, node_type, begin, end in self.places:
            local, shape = local_ids[node_type][begin:end], self.seeds[key].shape
            if columns is None:
                restored[key] = local.view(shape)
            else:
                restored.setdefault(key, local.new_empty(shape))[:, columns] = local.view(-1, len(columns))
        return restored


def plain_seeds(where: str, seeds: Any) -> Tensor:
    """Return the seeds of a minibatch, checked, for a graph without types: ids [n] or [n, k], at least one.

    Raises:
        TypeError, ValueError: The seeds are no ids, or have types; the message names the value found.
    """
    if isinstance(seeds, dict):
        raise _types_without_graph(where, seeds)
    checked = check_seeds(where, "seeds", seeds)
    if checked.numel() == 0:
        raise _no_seeds(where, f"shape {list(checked.shape)}")
    return checked


def seed_ids(where: str, seeds: Any, graph: Graph, negative_end: str = "dst") -> SeedIds:
    """Return the seeds of a minibatch, checked, for a graph with types.

    Args:
        negative_end: "src" or "dst", the end to which columns 2 and up of seeds [n, k] belong.
    Raises:
        TypeError, ValueError: The seeds are no ids, or the graph lacks their types; the message names the value found.
    """
    if not isinstance(seeds, dict):
        raise _no_types(where, type(seeds).__name__, graph)
    columns: dict[Any, list[Tensor]] = {}
    lengths: dict[Any, int] = {}
    places: list[tuple[Any, list[int] | None, Any, int, int]] = []
    for key in sorted(seeds):
        for columns_of_type, node_type, ids in _columns(where, key, seeds[key], graph, negative_end):
            begin = lengths.get(node_type, 0)
            lengths[node_type] = begin + int(ids.shape[0])
            columns.setdefault(node_type, []).append(ids)
            places.append((key, columns_of_type, node_type, begin, lengths[node_type]))
    if not any(lengths.values()):
        raise _no_seeds(where, f"types {shown(sorted(map(type_text, seeds)))}")
    joined = {node_type: parts[0] if len(parts) == 1 else torch.cat(parts) for node_type, parts in columns.items()}
    return SeedIds(joined, places, seeds)


def check_seed_types(where: str, types: Collection[Any] | None, graph: Graph) -> None:
    """Raise TypeError or ValueError if seeds of `types` do not fit the graph; None means seeds without types."""
    if not graph.is_heterogeneous:
        if types is not None:
            raise _types_without_graph(where, types)
        return
    if types is None:
        raise _no_types(where, "an ItemSet without types", graph)
    for key in types:
        if isinstance(key, str):
            known_node_type(f"{where}, seeds", key, graph.node_types)
        else:
            known_edge_type(f"{where}, seeds", key, graph.edge_types)


def warn_of_empty_blocks(where: str, graph: Graph, types: Collection[Any], sampled: Collection[Any]) -> None:
    """Warn if none of the sampled edge types has an edge into a type of the seeds. Warn once for each graph; worker
    processes know what was warned of before.
    """
    ends = {key[2] for key in sampled if key is not None and graph.num_edges_of(key) > 0}
    for key in types if graph.is_heterogeneous else ():
        if ends.isdisjoint(node_type for _, node_type in seed_columns(key)) and (key, *sampled) not in graph._warned_of:
            graph._warned_of = graph._warned_of | {(key, *sampled)}
            warnings.warn(
                f"{where}: no sampled edge leads to the seeds of {type_text(key)}, so their blocks are empty, and a "
                f"model sees nothing but the seeds; sampled are {shown([*map(type_text, sampled)])}. Sample an edge "
                "type that ends there: graph.to_undirected, or T.ToUndirected of PyG, adds the reverses.",
                UserWarning,
                stacklevel=users_frame()[0],
            )


def _types_without_graph(where: str, types: Collection[Any]) -> TypeError:
    return TypeError(
        f"{where}: seeds have the types {shown(sorted(map(type_text, types)))}, but the graph has none. Take an "
        "ItemSet without types, or sample a HeteroCSCGraph."
    )


def _no_types(where: str, seeds: str, graph: Graph) -> TypeError:
    return TypeError(
        f"{where}: seeds must be a dict by type, since the graph has types, got {seeds}. Start the chain with "
        f"dp.HeteroItemSet({{type: items}}); node types are {shown(list(graph.node_types))}."
    )


def _columns(
    where: str, key: Any, seeds: Any, graph: Graph, negative_end: str
) -> list[tuple[list[int] | None, str, Tensor]]:
    """Return the columns of `seeds`, the seeds of the type `key`, by node type: [(columns, node type, ids of these
    columns, row by row)]. Columns None means all columns.

    Raises:
        TypeError, ValueError: The seeds do not fit the graph; the message names the value found.
    """
    ids = check_seeds(where, f"seeds of {shown(key)}", seeds)
    if isinstance(key, str):
        known_node_type(where, key, graph.node_types)
        if ids.ndim != 1:
            raise ValueError(
                f"{where}: seeds of the node type {key!r} must have shape [n], got {list(ids.shape)}. Pairs of nodes "
                "belong to an edge type: {('src', 'rel', 'dst'): pairs}."
            )
        return [(None, key, ids)]
    known_edge_type(where, key, graph.edge_types)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise ValueError(
            f"{where}: seeds of the edge type {key} must be pairs [n, 2] (source, destination), or [n, k] with more "
            f"nodes of one end behind them, got {list(ids.shape)}. Reshape them."
        )
    return [
        (columns, node_type, ids.reshape(-1) if columns is None else ids[:, columns].reshape(-1))
        for columns, node_type in seed_columns(key, int(ids.shape[1]), negative_end)
    ]


def seed_columns(key: Any, width: int = 2, negative_end: str = "dst") -> list[tuple[list[int] | None, str]]:
    """Return which columns of seeds of the type `key` have nodes of which type: [(columns, node type)].

    Columns None means all columns. The node type of column 0 comes first.

    Args:
        key: a node type, or an edge type (src, rel, dst).
        width: number of columns.
        negative_end: "src" or "dst", the end to which columns 2 and up belong.
    """
    if isinstance(key, str):
        return [(None, key)]
    src, _, dst = key
    if src == dst:
        return [(None, src)]
    more = list(range(2, width))
    return [([0, *more], src), ([1], dst)] if negative_end == "src" else [([0], src), ([1, *more], dst)]


def check_seeds(where: str, name: str, seeds: Any) -> Tensor:
    """Return `seeds`, which must be int32 or int64, [n] or [n, k], contiguous, in host memory."""
    if not isinstance(seeds, Tensor):
        remedy = "Name one item 'seeds' in the ItemSet." if seeds is None else "Convert it with torch.as_tensor()."
        raise TypeError(f"{where}: {name} must be a tensor, got {type(seeds).__name__}. {remedy}")
    if seeds.dtype not in INDEX_DTYPES:
        raise TypeError(
            f"{where}: {name} must be int32 or int64, got {dtype_name(seeds.dtype)}. {how_to_get_ids(seeds)}"
        )
    if seeds.ndim not in (1, 2):
        raise ValueError(f"{where}: {name} must have shape [n] or [n, k], got {list(seeds.shape)}. Reshape them.")
    if seeds.device.type != "cpu":
        raise ValueError(
            f"{where}: {name} must be in host memory, found them on {seeds.device}. Put copy_to after this stage."
        )
    if not seeds.is_contiguous():
        raise ValueError(f"{where}: {name} are not contiguous (stride {seeds.stride()}). Call .contiguous() on them.")
    return seeds


def _no_seeds(where: str, details: str) -> ValueError:
    return ValueError(
        f"{where}: found no seeds ({details}); at least 1 is needed. Return None from a transform to drop a minibatch."
    )


# --- trees


def seed_trees(
    where: str,
    seeds: Any,
    timestamps: Any,
    windows: Any = None,
    *,
    disjoint: bool,
    has_times: bool,
    window_field: str | None = None,
    negative_end: str = "dst",
) -> SeedTrees:
    """Return the groups of the seeds of a minibatch; the sampler has checked the seeds.

    Args:
        seeds: ids [n] or [n, k]; with types {node or edge type: ids}.
        timestamps: a time for each row of the seeds, a dict if `seeds` is one; read only if `has_times`.
        windows: a time window for each row, in the same form; read only if `window_field` names their field.
        disjoint: True: each seed is a group. False: all seeds that have the same time and window are a group.
        negative_end: as for `seed_ids`.
    Raises:
        TypeError, ValueError: The times or windows do not belong to the seeds, or a window is negative; the message
            names the value found.
    """
    parts: list[tuple[Any, Tensor]] = sorted(seeds.items()) if isinstance(seeds, dict) else [(None, seeds)]
    has_types = isinstance(seeds, dict)
    fields = [_values_of_rows(where, "timestamps", "time", parts, timestamps, has_types)] if has_times else []
    if window_field is not None:
        fields.append(_values_of_rows(where, window_field, "time window", parts, windows, has_types))
        _refuse_negative(where, window_field, parts, fields[1])
    columns = [int(ids.shape[1]) if ids.ndim == 2 else 1 for _, ids in parts]
    row_of_tree = _rows(parts, columns)
    if len(row_of_tree) > MOST_TREES:
        raise ValueError(
            f"{where}: found {len(row_of_tree)} seeds; a minibatch whose seeds have times, or with disjoint=True, may "
            f"have {MOST_TREES} at most. Use smaller minibatches."
        )
    numbers, rows = np.arange(len(row_of_tree)), None
    if disjoint:
        streams, fields = numbers.astype(np.uint32), [values[row_of_tree] for values in fields]
        rows = None if all(count == 1 for count in columns) else torch.from_numpy(row_of_tree)
    else:
        of_rows = fields[0] if window_field is None else np.stack(fields)
        distinct, group_of_row = np.unique(of_rows, axis=-1, return_inverse=True)
        numbers = group_of_row.reshape(-1).astype(np.int64, copy=False)[row_of_tree]
        streams = np.zeros(distinct.shape[-1], dtype=np.uint32)
        fields = [np.ascontiguousarray(values) for values in np.atleast_2d(distinct)]
    times, window_of_group = [*fields, None, None][:2]
    return SeedTrees(_aligned(parts, columns, numbers, negative_end), streams, times, rows, window_of_group)


def _rows(parts: list[tuple[Any, Tensor]], columns: list[int]) -> _I64:
    """Return for each id in the seeds the row that it is in, int64 [number of ids]. Rows are counted over all types.

    Args:
        parts: [(type, seeds of this type)].
        columns: for each type, how many ids a row has.
    """
    counts = [int(ids.shape[0]) for _, ids in parts]
    return np.repeat(np.arange(sum(counts)), np.repeat(columns, counts))


def _aligned(parts: list[tuple[Any, Tensor]], columns: list[int], numbers: _I64, negative_end: str) -> Any:
    """Reorder `numbers`, the group of each id in the seeds, into the order of the ids that the sampler gets.

    Return an array; with types, {node type: groups}.

    Args:
        parts: [(type, seeds of this type)]; the type is None without types.
        columns: for each type, how many ids a row has.
        negative_end: as for `seed_ids`.
    """
    if parts[0][0] is None:
        return numbers
    pieces: dict[Any, list[_I64]] = {}
    begin = 0
    for (key, ids), count in zip(parts, columns, strict=True):
        of_key = numbers[begin : begin + ids.numel()]
        begin += ids.numel()
        for some, node_type in seed_columns(key, count, negative_end):
            of_columns = of_key if some is None else of_key.reshape(-1, count)[:, some].reshape(-1)
            pieces.setdefault(node_type, []).append(of_columns)
    return {
        node_type: np.ascontiguousarray(rows[0]) if len(rows) == 1 else np.concatenate(rows)
        for node_type, rows in pieces.items()
    }


def _values_of_rows(
    where: str, field: str, each: str, parts: list[tuple[Any, Tensor]], values: Any, has_types: bool
) -> _I64:
    """Return the value of each row of the seeds, int64 [number of rows]; rows are counted over all types.

    Args:
        field: the field of the minibatch that has the values.
        each: what a value is, for errors: "time" or "time window".
    """
    name = field if each == "time" else f"the field {field!r} with time windows"
    if values is None:
        raise ValueError(
            f"{where}: found seeds without {name}; each row of the seeds needs a {each}. Name one item {field!r} in "
            "the ItemSet."
        )
    if isinstance(values, dict) != has_types:
        wanted = "a dict by type, as the seeds are" if has_types else "a tensor, since the seeds have no types"
        raise TypeError(f"{where}: {name} must be {wanted}, got {type(values).__name__}. Give both in the same form.")
    if not has_types:
        return check_times(where, name, values, parts[0][1], each)
    missing = [key for key, _ in parts if key not in values]
    if missing or len(values) > len(parts):
        types = shown(sorted(map(type_text, values)))
        wanted = shown([type_text(key) for key, _ in parts])
        raise ValueError(
            f"{where}: {name} have the types {types}, the seeds {wanted}; both must have the same. Name an item "
            f"{field!r} in each ItemSet."
        )
    return np.concatenate([check_times(where, f"{name} of {shown(key)}", values[key], ids, each) for key, ids in parts])


def _refuse_negative(where: str, field: str, parts: list[tuple[Any, Tensor]], windows: _I64) -> None:
    """Raise ValueError if a time window is negative; `windows` are those of all rows of the seeds."""
    begin = 0
    for key, ids in parts:
        of_key = windows[begin : begin + ids.shape[0]]
        begin += ids.shape[0]
        for row in (of_key < 0).nonzero()[0][:1].tolist():
            raise ValueError(
                f"{where}: {field!r} of the seed {shown(ids[row].tolist())}{of_type(key)} is {of_key[row]}; a time "
                "window must be 0 or more. Correct it in the ItemSet."
            )


def check_times(where: str, name: str, times: Any, seeds: Tensor, each: str = "time") -> _I64:
    """Return the times of seeds [n, ...] as an array; they must be an int64 tensor [n] in host memory. `each` says what
    a value is, for errors.
    """
    if not isinstance(times, Tensor):
        raise TypeError(f"{where}: {name} must be a tensor, got {type(times).__name__}. Convert it.")
    if times.dtype != torch.int64:
        raise TypeError(
            f"{where}: {name} must be int64, got {dtype_name(times.dtype)}. Convert them to the "
            "unit of the graph's times."
        )
    if times.ndim != 1 or times.shape[0] != seeds.shape[0]:
        raise ValueError(
            f"{where}: {name} must have shape [{seeds.shape[0]}], a {each} for each row of the seeds, got "
            f"{list(times.shape)}. Give one {each} for each row."
        )
    if times.device.type != "cpu":
        raise ValueError(
            f"{where}: {name} must be in host memory, found them on {times.device}. Put copy_to after this stage."
        )
    return times.numpy()
