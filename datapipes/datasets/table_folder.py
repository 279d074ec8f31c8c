"""The folders that from_tables writes: a metadata.yaml for OnDiskDataset, and tables.json with what that cannot say."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import check_choice, check_within, shown
from datapipes.base.files import read_regular, write_text
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import type_text
from datapipes.datasets.dataset import MASKS, Dataset, Task
from datapipes.datasets.ondisk import OnDiskDataset
from datapipes.datasets.ondisk_yaml import MOST_YAML_BYTES, YAML, is_inside
from datapipes.datasets.raw import MAX_CLASSES, format_errors
from datapipes.datasets.relbench import with_tasks
from datapipes.datasets.table_content import Content
from datapipes.datasets.table_plan import WHERE
from datapipes.graph.npy import NpyRows
from datapipes.ingest.columns import UNITS
from datapipes.ingest.ids import Ids, Names, StoredIds
from datapipes.ingest.pieces import Pieces, mapped
from datapipes.minibatch import SparseRows
from datapipes.seeds import HeteroItemSet, ItemSet

_FIELDS: dict[str, Any] = {
    "task": str,
    "num_classes": int,
    "class_names": list,
    "node_names": list,
    "left_out": list,
    "time_unit": str,
    "facts": list,
    "cuts": (list, type(None)),
    "tasks": list,
}
TABLES = "tables.json"  # what a folder's metadata.yaml does not say
_MOST_BYTES = 2**28  # of this file
_NOT_PLAIN = re.compile(
    "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
)  # of JSON's characters, those that YAML reads otherwise


class Files:
    """Makes Pieces that lie in numbered .npy files of the folder "arrays" in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._numbers = folder, itertools.count()
        (folder / "arrays").mkdir()

    def __call__(self) -> Pieces:
        return Pieces(self.folder / "arrays" / f"{next(self._numbers)}.npy")


def write_content(files: Files, name: str, content: Content, tasks: Sequence[Task]) -> None:
    """Write the content to the folder of its files: a metadata.yaml, which OnDiskDataset reads, and further fields.

    `tasks`, whose sets have types, take the place of the content's own task.
    """
    folder = files.folder

    def path_of(rows: NDArray[Any]) -> str:
        if not isinstance(rows, np.memmap):  # without rows, or made in memory
            pieces = files()
            mapped(lambda some: some, pieces, rows)
            return f"arrays/{Path(str(pieces.path)).name}"
        return f"arrays/{Path(str(rows.filename)).name}"

    def stored(rows: NDArray[Any]) -> dict[str, str]:
        return {"format": "numpy", "path": path_of(rows)}

    def typed(kind: Any) -> dict[str, Any]:
        return {} if kind is None else {"type": type_text(kind) if isinstance(kind, tuple) else kind}

    def listed(keys: Any, **facts: Any) -> list[dict[str, Any]]:
        return [
            {"domain": key[0], **typed(key[1]), "name": key[2], **stored(content.features[key]), **facts}
            for key in keys
        ]

    def named(names: Names) -> list[Any]:
        kind, arrays = names.store(files)
        return [kind, *map(path_of, arrays)]

    def fields_of(items: ItemSet) -> list[Any]:
        fields = []
        for field, rows in zip(items.names, items._values(), strict=True):
            if isinstance(rows, SparseRows):
                fields.append([field, path_of(rows.indptr.numpy()), path_of(rows.indices.numpy()), rows.num_columns])
            else:
                fields.append([field, path_of(rows.numpy())])
        return fields

    def sets_of(task: Task) -> dict[str, Any]:
        sets: dict[str, Any] = {part: getattr(task, part).item_sets for part in MASKS}
        return {part: {kind: fields_of(items) for kind, items in by_type.items()} for part, by_type in sets.items()}

    edges = []
    for kind, (src, dst) in content.edges.items():
        if len(src) == 2:  # readers take an array [2, 2] as [2, n]
            pairs = np.stack([src, dst])
        else:
            pairs = mapped(lambda one, other: np.stack([one, other], axis=1), files(), src, dst)
        edges.append({**typed(kind), **stored(pairs)})
    sets = {
        part: [
            {
                **typed(kind),
                "data": [{"name": field, **stored(rows), "in_memory": False} for field, rows in data.items()],
            }
            for kind, data in by_type.items()
        ]
        for part, by_type in content.sets.items()
    }
    nodes = [{**typed(kind), "num": count} for kind, count in content.num_nodes.items()]
    whole = {
        "dataset_name": name,
        "graph": {"nodes": nodes, "edges": edges, "feature_data": listed(sorted(content.attributes, key=str))},
        "feature_data": listed(content.features, in_memory=False),
        "tasks": [{"name": content.others["task"], **sets}],
    }
    facts = [
        [[*key], {fact: named(value) if isinstance(value, Names) else value for fact, value in values.items()}]
        for key, values in content.facts.items()
    ]
    names = [[kind, named(of_type)] for kind, of_type in content.others["node_names"].items()]
    left_out = [[*key, text] for key, text in content.others["left_out"].items()]
    rest = {**content.others, "node_names": names, "left_out": left_out, "facts": facts, "cuts": content.cuts}
    rest["tasks"] = [[task.metadata, sets_of(task)] for task in tasks]
    text = _NOT_PLAIN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(whole, ensure_ascii=False))
    if len(text.encode()) > MOST_YAML_BYTES:
        raise ValueError(
            f"{WHERE}: the data set has {len(content.features)} features, too many for a folder, whose {YAML} may have "
            f"{MOST_YAML_BYTES} bytes. Name fewer columns in features."
        )
    write_text(folder / TABLES, json.dumps(rest, default=int, allow_nan=False))
    write_text(folder / YAML, text)


def _mapped_file(folder: Path, name: Any, *dtypes: str, most_dims: int = 1) -> NDArray[Any]:
    """Return the array of a .npy file below a folder, memory-mapped."""
    if not is_inside(name):
        raise ValueError(f"found the path {shown(name)}; expected a file below the folder")
    rows = NpyRows(TABLES, folder / name)  # checks header and size
    if rows.dtype.name not in dtypes or not 1 <= len(rows.shape) <= most_dims:
        shape = "[n]" if most_dims == 1 else f"of 1 to {most_dims} dimensions"
        raise ValueError(f"found {rows.dtype} {[*rows.shape]} in {name}; expected {' or '.join(dtypes)} {shape}")
    if rows.is_transposed:
        raise ValueError(f"found {name} in Fortran order; expected rows, one after the other")
    if 0 in rows.shape:
        return np.zeros(rows.shape, rows.dtype)
    return np.memmap(rows.path, rows.dtype, "r", rows.begin, rows.shape)


def is_table_folder(path: Path) -> bool:
    """Return whether `from_tables` wrote a folder."""
    return (path / TABLES).is_file() and (path / YAML).is_file()


def read_table_folder(path: Path) -> Dataset:
    """Return the Dataset in a folder that `from_tables` wrote."""

    def names(stored: Any) -> Names:
        kind, *paths = stored
        dtypes = ["int64"] if kind == "integers" else ["int64", "uint8"]
        if kind not in ("", "integers", "texts", "bytes", "uuids") or (kind and len(paths) != len(dtypes)):
            raise ValueError(f"found the names {shown(stored)}; expected a kind of ids and its files")
        arrays = [_mapped_file(path, name, dtype) for name, dtype in zip(paths, dtypes, strict=bool(kind))]
        if len(arrays) == 2 and kind:
            ends = arrays[0]
            lengths = np.diff(ends)
            are_right = (lengths == 16).all() if kind == "uuids" else (lengths >= 0).all()
            if len(ends) == 0 or ends[0] != 0 or ends[-1] != len(arrays[1]) or not are_right:
                raise ValueError(f"found offsets in {paths[0]} that do not fit {paths[1]}")
        return Names(StoredIds(kind, arrays) if kind else Ids())

    def typed(kind: Any) -> Any:
        return tuple(kind) if isinstance(kind, list) else kind

    def items(kind: str, fields: Any) -> ItemSet:
        rows: dict[str, Any] = {}
        for field, *stored in fields:
            files = [_mapped_file(path, one, "int64", "float32", most_dims=2) for one in stored[:2]]
            parts = [torch.from_numpy(np.array(values)) for values in files]
            rows[field] = parts[0] if len(stored) == 1 else SparseRows(parts[0], parts[1], stored[2])
        check_within("the seeds", f"nodes of {kind}", rows["seeds"], data.graph.num_nodes_of(kind), "Write them anew.")
        return ItemSet(tuple(rows.values()), tuple(rows))

    data = OnDiskDataset(path, include_original_edge_id=True).load()
    with format_errors(f"{path.name}/{TABLES}", "Write the folder anew."):
        rest = parse_strict(read_regular(path / TABLES, _MOST_BYTES).decode(), floats=True)
        if not isinstance(rest, dict) or rest.keys() != {*_FIELDS}:
            raise ValueError(f"found {shown([*rest] if isinstance(rest, dict) else rest)}; expected {[*_FIELDS]}")
        for name, kinds in _FIELDS.items():
            if not isinstance(rest[name], kinds):
                raise ValueError(f"{name} is {shown(rest[name])}, expected {kinds}")
        facts = {
            (domain, typed(kind), name): {
                fact: names(value) if fact == "categories" else value for fact, value in dict(values).items()
            }
            for (domain, kind, name), values in rest.pop("facts")
        }
        if not {*facts} <= {*data.features}:
            raise ValueError(f"found facts of {shown([*facts])}; the features are {shown([*data.features])}")
        check_choice(TABLES, "time_unit", rest["time_unit"], ["", *UNITS])
        texts = [text for entry in rest["left_out"] for text in entry] + rest["class_names"]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"found {shown(texts)}; expected texts")
        cuts, stored_tasks = rest.pop("cuts"), rest.pop("tasks")
        if cuts is not None and [type(cut) for cut in cuts] != [int, int]:
            raise ValueError(f"found the cuts {shown(cuts)}; expected two times")
        rest["node_names"] = {kind: names(stored) for kind, stored in rest["node_names"]}
        for kind, of_type in rest["node_names"].items():
            if len(of_type) != data.graph.num_nodes_of(kind):
                raise ValueError(f"found {len(of_type)} names of {kind!r}; expected one for each node")
        rest["left_out"] = {(table, column): text for table, column, text in rest["left_out"]}
        rest["class_names"] = tuple(rest["class_names"])
        counts = [rest["num_classes"], *(dict(metadata).get("num_classes", 0) for metadata, _ in stored_tasks)]
        if any(type(count) is not int or not 0 <= count <= MAX_CLASSES for count in counts) or counts[0] != len(
            rest["class_names"]
        ):
            raise ValueError(f"found {shown(counts)} classes, and {len(rest['class_names'])} names of them")
        completed = Content({}, facts=facts, cuts=cuts and tuple(cuts), others=rest).completed(data)
        tasks = [
            Task(
                **{part: HeteroItemSet({k: items(k, f) for k, f in dict(sets[part]).items()}) for part in MASKS},
                metadata=metadata,
            )
            for metadata, sets in stored_tasks
        ]
        return with_tasks(completed, tuple(tasks))
