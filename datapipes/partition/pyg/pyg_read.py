"""Read a partition in PyG's layout, written by this package or by PyG's Partitioner.

No file is trusted: no code in a file runs, and the content of each file is compared with the maps of nodes and edges.
So a file of another partition or part is refused. Here the ids of each type begin at 0, even if PyG's files number all
types in one sequence. Every error about content is a ValueError that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_int, one_line, reason, shown
from datapipes.base.files import read_regular
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, ends_of, known_node_type, of_type
from datapipes.partition.book import MOST_PARTS, IdMap, PartitionBook
from datapipes.partition.pyg.pyg_names import (
    EDGE_FEATS,
    EDGE_TIME,
    GRAPH,
    META,
    NODE_FEATS,
    TIME,
    check_file_names,
    map_file,
    offsets_of,
)
from datapipes.partition.pyg.torch_file import (
    attributes_in,
    dict_in,
    ids_in,
    load_plain,
    refuse,
    refuse_others,
    said,
    size_in,
    tensor_in,
)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a type in one part.

    Attributes:
        row, col: int64 [num_edges], sources and destinations; the destinations ascend.
        edge_id: int64 [num_edges], the edge ids; those of each type begin at 0.
        size: (number of source nodes, number of destination nodes) in the whole graph.
    """

    row: Tensor
    col: Tensor
    edge_id: Tensor
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Features:
    """The features of a node type or edge type in one part.

    Attributes:
        ids: int64 [n], the ids of the part's nodes or edges, in any order; those of each type begin at 0.
        of_ids: {name: [n, ...]}, features whose row i belongs to ids[i].
        of_all: {name: [number of nodes of the type]}, the times of nodes: every part has the times of all nodes of the
            graph.
    """

    ids: Tensor
    of_ids: Mapping[str, Tensor]
    of_all: Mapping[str, Tensor]


class PygFolder:
    """A partition in PyG's layout, whose parts can be read.

    Args:
        root: the folder of META.json.
    Raises:
        FileNotFoundError: META.json or a map is missing. Or another folder has taken the place of `root`, so that files
            of two partitions would be mixed; methods that read a part raise FileNotFoundError then, too.
        ValueError: A file is broken or hostile, or META.json contradicts the maps.

    Attributes:
        meta: the content of META.json.
        book: the PartitionBook: which part owns each node and each edge.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._identity = _identity(self.root)
        with self._same_folder():
            self.meta: Meta = _read_meta(self.root)
            nodes = {kind: self._map("node_map", kind) for kind in self.meta.node_types}
            edges = {kind: self._map("edge_map", kind) for kind in self.meta.edge_types}
        self.book = PartitionBook(self.meta.num_parts, nodes, edges)
        self._node_offsets = offsets_of({kind: len(owners) for kind, owners in nodes.items()})
        self._edge_offsets = offsets_of({kind: len(owners) for kind, owners in edges.items()})
        stated, offsets = self.meta.given.get("node_offset"), [*self._node_offsets.values()]
        if self.meta.is_hetero and stated not in (None, offsets):  # older PyG writes no node_offset
            needed = f"it must be {shown(offsets)}, which follows from the lengths of the node maps"
            refuse(self.root / META, f"node_offset is {shown(stated)}", needed)

    @contextmanager
    def _same_folder(self) -> Iterator[None]:
        """Check at the end of a with statement that `root` is still the folder that was opened.

        Raises:
            FileNotFoundError: Another folder has taken its place; this error replaces that of a file that was read.
        """
        error: Exception | None = None
        try:
            yield
        except (FileNotFoundError, ValueError) as raised:
            error = raised
        if _identity(self.root) != self._identity:
            raise FileNotFoundError(
                f"partition: another folder has taken the place of {self.root} while its files were opened. Open it "
                "again."
            ) from error
        if error is not None:
            raise error

    def _map(self, name: str, kind: NodeType | EdgeType | None) -> Tensor:
        path = map_file(self.root, name, kind)
        owners = ids_in(path, name, load_plain(path))
        refuse_others(path, name, owners, self.meta.num_parts)
        return owners

    def part(self, part: int) -> Path:
        """Return the path of the folder of a part: "part_N" or "partN" in `root`, N being `part`.

        Raises:
            TypeError, ValueError: There is no such part.
            FileNotFoundError: Its folder is missing.
        """
        check_int("partition", "part", part, 0, self.meta.num_parts - 1)
        for folder in (self.root / f"part_{part}", self.root / f"part{part}"):
            if folder.is_dir():
                return folder
        raise FileNotFoundError(
            f"partition: {self.root / f'part_{part}'} does not exist, and neither does part{part}; "
            f"META.json says {self.meta.num_parts} parts. Bring the folder here, or write the partition again."
        )

    def edges(self, part: int) -> dict[EdgeType | None, Edges]:
        """Read and check the edges of a part, and return {edge type: Edges}.

        The checks take time O(edges of the graph). Memory: 2 bytes for each edge of the graph's largest edge type, and
        about 10 for each edge of the part.
        """
        with self._same_folder():
            path = self.part(part) / GRAPH
            entries = self._by_type(path, self.meta.edge_types)
            for edge_type in self.meta.edge_types:
                if edge_type not in entries:
                    needed = "there must be an entry for each edge type of META.json"
                    refuse(path, f"there are no edges of {shown(edge_type)}", needed)
            return {kind: self._edges(path, part, kind, entries[kind]) for kind in self.meta.edge_types}

    def _edges(self, path: Path, part: int, edge_type: EdgeType | None, entry: Any) -> Edges:
        of_kind = one_line(of_type(edge_type))
        fields = dict_in(path, f"the edges{of_kind}", entry, {"row", "col", "edge_id", "size"}, set())
        row, col, edge_id = (ids_in(path, f"{name}{of_kind}", fields[name]) for name in ("row", "col", "edge_id"))
        if not row.shape == col.shape == edge_id.shape:
            lengths = [len(row), len(col), len(edge_id)]
            refuse(path, f"row, col and edge_id{of_kind} have {lengths} values", "the three numbers must be equal")
        src, dst = map(self.book.nodes, ends_of(edge_type))
        size = size_in(path, f"size{of_kind}", fields["size"], (src.num_ids, dst.num_ids))
        refuse_others(path, f"row{of_kind}", row, src.num_ids)
        refuse_others(path, f"col{of_kind}", col, dst.num_ids)
        if bool((dst.part_of(col) != part).any()):
            needed = f"all must end at nodes of part {part}: this may be another part's file"
            refuse(path, f"some edges{of_kind} end at nodes of other parts", needed)
        owners, offset = self.book.edges(edge_type), self._edge_offsets[edge_type]
        edge_id = edge_id - offset if offset else edge_id
        _refuse_other_ids(path, f"edge_id{of_kind}", edge_id, owners, part)
        if bool((col[1:] < col[:-1]).any()):
            if self.meta.is_sorted:
                refuse(path, f"the destinations{of_kind} do not ascend", "META.json says that they are sorted")
            order = torch.argsort(col, stable=True)
            row, col, edge_id = row[order], col[order], edge_id[order]
        return Edges(row, col, edge_id, size)

    def node_features(self, part: int) -> dict[NodeType | None, Features]:
        """Read and check the node features of a part; return {node type: Features}.

        Types of which the part has no nodes may be missing.
        """
        with self._same_folder():
            path = self.part(part) / NODE_FEATS
            entries = self._by_type(path, self.meta.node_types)
            for node_type in self.meta.node_types:
                count = self.book.nodes(node_type).count_of(part)
                if node_type not in entries and count > 0:
                    needed = f"the node map gives {count} to part {part}"
                    refuse(path, f"there are no nodes of {shown(node_type)}", needed)
            return {
                kind: self._nodes(path, part, kind, entries[kind]) for kind in self.meta.node_types if kind in entries
            }

    def _nodes(self, path: Path, part: int, node_type: NodeType | None, entry: Any) -> Features:
        of_kind = one_line(of_type(node_type))
        fields = dict_in(path, f"the nodes{of_kind}", entry, {"global_id", "feats"}, {"id", TIME})
        owners = self.book.nodes(node_type)
        ids = ids_in(path, f"global_id{of_kind}", fields["global_id"]) - self._node_offsets[node_type]
        if "id" in fields and not torch.equal(ids_in(path, f"id{of_kind}", fields["id"]), ids):
            refuse(path, f"id and global_id{of_kind} name different nodes", "both must name the same nodes")
        _refuse_other_ids(path, f"global_id{of_kind}", ids, owners, part)
        features = attributes_in(path, f"feats{of_kind}", fields["feats"], len(ids))
        return Features(ids, features, _times(path, TIME, of_kind, fields, features, owners.num_ids))

    def edge_features(self, part: int) -> dict[EdgeType | None, Features]:
        """Read and check the edge features of a part; return {edge type: Features}.

        Types without features are missing.
        """
        with self._same_folder():
            path = self.part(part) / EDGE_FEATS
            entries = self._by_type(path, self.meta.edge_types)
            # Needed for times without ids, which are in the order of the edges in graph.pt.
            edges: dict[EdgeType | None, Edges] = {}
            if any("global_id" not in entry for entry in entries.values() if entry):
                edges = self.edges(part)
            return {kind: self._features(path, part, kind, entry, edges) for kind, entry in entries.items() if entry}

    def _features(
        self, path: Path, part: int, edge_type: EdgeType | None, entry: Any, edges: Mapping[Any, Edges]
    ) -> Features:
        of_kind = one_line(of_type(edge_type))
        fields = dict_in(path, f"the features{of_kind}", entry, set(), {"global_id", "feats", EDGE_TIME})
        if "global_id" in fields:
            ids = ids_in(path, f"global_id{of_kind}", fields["global_id"])
            _refuse_other_ids(path, f"global_id{of_kind}", ids, self.book.edges(edge_type), part)
        else:
            ids = edges[edge_type].edge_id
        features = attributes_in(path, f"feats{of_kind}", fields.get("feats", {}), len(ids))
        return Features(ids, features | _times(path, EDGE_TIME, of_kind, fields, features, len(ids)), {})

    def _by_type(self, path: Path, types: tuple[Any, ...]) -> dict[Any, Any]:
        """Return the content of a file of a part as {type: dict}; {None: dict} in a graph without types.

        `types` has the node types or the edge types that META.json names. Raise ValueError if the file has another
        type, or an entry that is no dict.
        """
        content = dict_in(path, "the file", load_plain(path))
        if not self.meta.is_hetero:
            return {None: content}
        for key, value in content.items():
            if key not in types:
                refuse(path, f"found the type {said(key)}", f"allowed are those of META.json, {shown(list(types))}")
            dict_in(path, f"the entry of {said(key)}", value)
        return content


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        status = root.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _times(
    path: Path, name: str, of_kind: str, fields: Mapping[str, Any], features: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    """Return {name: times} from `fields`, the entry of a type in a file; {} if it has no times.

    There must be `count` times. A feature that is called `name`, too, is refused, since one of the two would be lost.
    """
    if fields.get(name) is None:
        return {}
    if name in features:
        refuse(path, f"found both {name!r}{of_kind} and feats[{name!r}]", "only one of the two may be there")
    return {name: tensor_in(path, f"{name}{of_kind}", fields[name], count)}


def _refuse_other_ids(path: Path, name: str, ids: Tensor, owners: IdMap, part: int) -> None:
    """Raise ValueError unless `ids` are exactly the ids that `part` owns by the map `owners`, each once."""
    refuse_others(path, name, ids, owners.num_ids)
    is_own = owners.dense() == part
    seen = torch.zeros_like(is_own)
    seen[ids] = True
    if len(ids) != int(is_own.sum()) or not torch.equal(seen, is_own):
        needed = f"the map gives {int(is_own.sum())} ids to part {part}, and each must be there once"
        refuse(path, f"the {len(ids)} ids in {name} are not those of part {part}", needed)


MOST_BYTES = 2**21  # of META.json


@dataclass(frozen=True)
class Meta:
    """The content of META.json, checked.

    Attributes:
        given: the whole content, as json.loads returned it; PyG's stores show it as `meta`.
        node_types, edge_types: the types in the order in which PyG numbers all nodes and edges; (None,) without types.
    """

    given: dict[str, Any]
    num_parts: int
    node_types: tuple[NodeType | None, ...]
    edge_types: tuple[EdgeType | None, ...]
    is_hetero: bool
    is_sorted: bool


def _read_meta(root: Path) -> Meta:
    """Read META.json in the folder `root`, check it, and return its content.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is broken, too long, or describes an impossible partition.
    """
    path = root / META
    if not path.exists():
        raise FileNotFoundError(
            f"partition: {path} does not exist; {root} must be a folder that holds a partition in PyG's layout. Check "
            "the path."
        )
    try:
        content = json.loads(read_regular(path, MOST_BYTES).decode("utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"found {type(content).__name__}, allowed is an object")
        return _meta(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"partition: {path} is not a valid META.json: {reason(error)} Write the partition again."
        ) from error


def _meta(content: dict[str, Any]) -> Meta:
    num_parts = check_int("META.json", "num_parts", content["num_parts"], 1, MOST_PARTS)
    is_hetero = check_bool("META.json", "is_hetero", content["is_hetero"])
    is_sorted = check_bool("META.json", "is_sorted", content.get("is_sorted", False))  # older PyG writes none
    if not is_hetero:
        return Meta(content, num_parts, (None,), (None,), is_hetero, is_sorted)
    node_types = tuple(check_node_type("META.json", name) for name in content["node_types"])
    edge_types = tuple(check_edge_type("META.json", tuple(names)) for names in content["edge_types"])
    for types in (node_types, edge_types):
        check_file_names(types)
        if len(set(types)) < len(types):
            raise ValueError("a type is named twice")
    for src, _, dst in edge_types:
        known_node_type("META.json", src, node_types)
        known_node_type("META.json", dst, node_types)
    return Meta(content, num_parts, node_types, edge_types, is_hetero, is_sorted)
