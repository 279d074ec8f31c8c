"""Build a graph with more edges than memory holds: CSCGraph.build and HeteroCSCGraph.build.

There are two passes. The first reads the edges of each type, in the order of their ids, and puts them into buckets by
destination (buckets.py). The second sorts one bucket after another and writes its edges to arrays.npy. The result is
bit for bit the graph that `from_edge_index(...).save(folder)` would write.

A build writes to a hidden folder beside the graph's folder, and renames it at the end. Each write of buckets also
writes `state.json`: the request, and the number of edges in the files. After a kill, the next build for the same graph
and the same edges goes on from that state. Source files are compared by size and time; edges without files are read
again and compared by digests of their chunks. A kill may also come after the renaming. So graph.json has a digest of
the request and the source files, and a build that finds its graph complete does nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.array_digest import StreamedDigest, array_digest
from datapipes.base.checks import INT32_MAX, check_bool, dtype_name, shown
from datapipes.base.files import read_regular, write_text
from datapipes.base.folder import check_place, check_space, locked, new_folder
from datapipes.base.progress import Progress, bars
from datapipes.base.sizes import parse_size
from datapipes.base.types import EdgeType, ends_of
from datapipes.graph.arena import ARRAYS, ArenaWriter, Array, Place, planned
from datapipes.graph.arrays import TOPOLOGY, array_name
from datapipes.graph.storage import CLASSES, HEADER, built_of, header_of, load
from datapipes.ingest.buckets import Buckets
from datapipes.ingest.edge_chunks import Chunk, Column, Values, attributes_of, edge_source

LEAST_MEMORY = 2**24  # bytes
_WORK, _STATE, _VERSION = "edges", "state.json", 1
_MOST_STATE_BYTES = 2**28
_PIECE_BYTES = 2**24  # of node attributes in memory at once
_HELD, _CHUNK = 2, 32  # 1/2 of max_memory is for edges not yet written, 1/32 for ends and attributes of a chunk
_END_BYTES = 16  # of both ends of an edge in a chunk
_MOST_CHUNK_BYTES = 2**24  # more would leave the cache
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Wanted(NamedTuple):
    """The arguments of CSCGraph.build or HeteroCSCGraph.build, as dicts by type; a CSCGraph has the type None."""

    edges: Mapping[Any, Any]
    num_nodes: Mapping[Any, int]
    edge_attributes: Mapping[Any, Mapping[str, Any]]
    node_attributes: Mapping[Any, Mapping[str, Any]]
    index_dtype: Any
    edge_ids: bool
    max_memory: int | str


def build_graph(form: str, folder: str | Path, wanted: Wanted) -> None:
    """Build a graph and write it to `folder`; see CSCGraph.build. `form` is the file format of the graph's class."""
    where = f"{CLASSES[form]}.build"
    most_bytes = parse_size(where, "max_memory", wanted.max_memory)
    if most_bytes < LEAST_MEMORY:
        raise ValueError(
            f"{where}: max_memory must be {LEAST_MEMORY} bytes or more, got {shown(wanted.max_memory)}. Raise it."
        )
    check_bool(where, "edge_ids", wanted.edge_ids)
    dtype = _index_dtype(where, wanted.index_dtype, max(wanted.num_nodes.values(), default=0))
    of_nodes = {
        node_type: attributes_of(where, wanted.node_attributes.get(node_type, {}), wanted.num_nodes[node_type], "node")
        for node_type in _in_order(wanted.num_nodes)
    }
    relations = [_Relation(where, edge_type, wanted, dtype) for edge_type in _in_order(wanted.edges)]
    state = _State(where, most_bytes, relations)
    if _is_there(Path(folder), form, state.built_of, wanted.num_nodes, of_nodes):
        with locked(where, check_place(where, folder)):  # removes the lock of a killed build
            return
    with new_folder(where, folder, goes_on=state.goes_on) as new, bars() as say:
        state.folder = new
        check_space(new, _bytes_needed(relations, of_nodes) - sum(relation.written_bytes for relation in relations))
        for relation in relations:
            relation.read(state, say)
        _write(state, form, wanted.num_nodes, of_nodes, say)
        shutil.rmtree(new / _WORK, ignore_errors=True)
        (new / _STATE).unlink(missing_ok=True)


def _is_there(
    folder: Path, form: str, edges: str | None, num_nodes: Mapping[Any, int], of_nodes: Mapping[Any, Any]
) -> bool:
    """Return whether `folder` already has the complete graph. False if `edges`, the digest to compare, is None."""
    if edges is None or built_of(folder) != edges:
        return False
    arrays, _ = load(folder, form, mmap=True)
    wanted = [((key, name), rows) for key, attributes in of_nodes.items() for name, rows in attributes.items()]
    names = {(key, name) for key, attributes in arrays.node_attributes.items() for name in attributes}
    return (
        arrays.num_nodes == {node_type: num_nodes[node_type] for node_type in of_nodes}
        and names == {key for key, _ in wanted}
        and all(_digest(rows) == arrays.digests.get(array_name("node_attributes", *key)) for key, rows in wanted)
    )


def _digest(values: Values) -> str:
    digest = StreamedDigest(values.column.dtype, values.column.shape)
    for piece in _pieces(values):
        digest.take(piece)
    return digest.digest()


def _in_order(types: Mapping[Any, Any]) -> list[Any]:
    return [None] if None in types else sorted(types)


def _index_dtype(where: str, index_dtype: Any, most_nodes: int) -> torch.dtype:
    named = {"int32": torch.int32, "int64": torch.int64}
    named["auto"] = torch.int32 if most_nodes <= INT32_MAX else torch.int64
    dtype = named.get(index_dtype) if isinstance(index_dtype, str) else index_dtype
    if dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{where}: index_dtype must be 'auto', torch.int32, torch.int64 or its name, got {shown(index_dtype)}. "
            "Pass one of them."
        )
    if dtype == torch.int32 and most_nodes > INT32_MAX:
        raise ValueError(f"{where}: {most_nodes} nodes do not fit into int32, which holds {INT32_MAX}. Use int64.")
    return dtype


def _bytes_needed(relations: Sequence[_Relation], of_nodes: Mapping[Any, Mapping[str, Values]]) -> int:
    """Return how many bytes on disk the graph and its bucket files will take, without edges whose count is unknown."""
    of_edges = sum(
        (relation.source.num_edges or 0) * 2 * relation.edge_bytes + 8 * (relation.num_dst + 1)
        for relation in relations
    )
    columns = [rows for attributes in of_nodes.values() for rows in attributes.values()]
    return of_edges + sum(rows.count * rows.column.row_bytes for rows in columns)


# --- the first pass


@dataclass
class _Saved:
    """What state.json says of an edge type: how many edges are in bucket files, and whether these are all edges."""

    edges: int = 0
    digests: list[str] = field(default_factory=list)  # of the chunks, if the edges have no source files
    has_all: bool = False


class _Relation:
    """The edges of one type during a build: their source, their buckets, and what a killed build has written."""

    def __init__(self, where: str, edge_type: EdgeType | None, wanted: Wanted, dtype: torch.dtype) -> None:
        src, dst = ends_of(edge_type)
        self.edge_type = edge_type
        self.where = where if edge_type is None else f"{where}, {edge_type}"
        self.title = "the edges" if edge_type is None else f"the edges {edge_type}"
        self.num_src, self.num_dst = wanted.num_nodes[src], wanted.num_nodes[dst]
        self.source = edge_source(self.where, wanted.edges[edge_type], wanted.edge_attributes.get(edge_type))
        ids = {"edge_ids": Column(torch.int64, ())} if wanted.edge_ids else {}
        self.columns = {"indices": Column(dtype, ()), **ids}
        self.columns.update({f"attribute {name}": column for name, column in self.source.columns.items()})
        self.edge_bytes = sum(column.row_bytes for column in self.columns.values())
        self.saved = _Saved()
        self.buckets: Buckets | None = None

    @property
    def written_bytes(self) -> int:
        """How many bytes of edges a killed build has left in files."""
        return self.saved.edges * self.edge_bytes

    def read(self, state: _State, say: Progress) -> None:
        """Read all edges of the source and add them to buckets, except those that a killed build has written."""
        saved, self.buckets = self.saved, state.buckets_of(self)
        size = state.chunk_edges(self)
        is_named = self.source.identity is not None
        done = saved.edges if is_named else 0  # edges of a source without identity are read again, and compared
        chunks = iter(()) if saved.has_all and is_named else _even(self.source.chunks(done, size), size)
        for number, chunk in enumerate(chunks):
            if not is_named:
                digest = _digest_of(chunk)
                if done < saved.edges and digest == saved.digests[number]:
                    done += len(chunk.src)
                    continue
                if done < saved.edges or saved.has_all:
                    raise self._other_edges()
                saved.digests.append(digest)
            is_written = self.buckets.add(*self._columns_of(chunk, done), done)
            done += len(chunk.src)
            say(f"read {self.title}", done, self.source.num_edges or 0)
            if is_written:
                state.save(self, done)
        if done < saved.edges:
            raise self._other_edges()
        state.read(self, done)

    def _columns_of(self, chunk: Chunk, before: int) -> tuple[NDArray[Any], dict[str, Tensor]]:
        for name, ends, count in (("source", chunk.src, self.num_src), ("destination", chunk.dst, self.num_dst)):
            if int(ends.min()) < 0 or int(ends.max()) >= count:
                place = int(np.flatnonzero((ends < 0) | (ends >= count))[0])
                raise IndexError(
                    f"{self.where}: edge {before + place} has the {name} {int(ends[place])}, which must be in [0, "
                    f"{count}). Raise num_nodes or drop the edge."
                )
        narrow = np.int32 if self.num_dst <= INT32_MAX else np.int64
        of_sources = np.int32 if self.columns["indices"].dtype == torch.int32 else np.int64
        columns = {"indices": torch.from_numpy(np.ascontiguousarray(chunk.src, of_sources))}
        columns.update({f"attribute {name}": values for name, values in chunk.attributes.items()})
        return np.ascontiguousarray(chunk.dst, narrow), columns

    def _other_edges(self) -> ValueError:
        return ValueError(
            f"{self.where}: these are not the edges that an earlier, killed build has read; its files are now "
            "removed. Call build again to begin anew."
        )


class _State:
    """The progress of a build, which is saved in state.json, so that a build can go on after a kill.

    Attributes:
        folder: the hidden folder of the build.
        built_of: a digest of the arguments and of the identities of the sources; None if a source has no identity.
    """

    def __init__(self, where: str, most_bytes: int, relations: Sequence[_Relation]) -> None:
        self.folder = Path()
        self.most_bytes, self.relations = most_bytes, relations
        facts = [
            [relation.edge_type, relation.num_src, relation.num_dst, relation.source.identity]
            + [[name, dtype_name(column.dtype), column.shape] for name, column in relation.columns.items()]
            for relation in relations
        ]
        self._asked = _hashed([where, most_bytes, facts])
        is_named = all(relation.source.identity is not None for relation in relations)
        self.built_of = _hashed([where, facts]) if is_named else None

    @property
    def held_bytes(self) -> int:
        """How many bytes the edges in memory take, over all edge types."""
        return sum(relation.buckets.held_bytes for relation in self.relations if relation.buckets is not None)

    def chunk_edges(self, relation: _Relation) -> int:
        """Return how many edges of `relation` a chunk should have: how many are read at once."""
        of_attributes = sum(column.row_bytes for column in relation.source.columns.values())
        return max(min(self.most_bytes // _CHUNK, _MOST_CHUNK_BYTES) // (_END_BYTES + of_attributes), 1)

    def buckets_of(self, relation: _Relation) -> Buckets:
        """Return new Buckets for the edges of `relation`, with the edges that a killed build has written."""
        buckets = self._new_buckets(self.folder, relation, self.most_bytes // _HELD - self.held_bytes)
        buckets.take_written(relation.saved.edges)
        return buckets

    def _new_buckets(self, folder: Path, relation: _Relation, most_bytes: int = 0) -> Buckets:
        place = folder / _WORK / str(self.relations.index(relation))
        return Buckets(place, relation.num_dst, relation.columns, most_bytes)

    def read(self, relation: _Relation, num_edges: int) -> None:
        """Record that all edges of `relation` have been read. If many edges are in memory, write them to the file."""
        buckets = relation.buckets
        assert buckets is not None
        if buckets.is_written or self.held_bytes > self.most_bytes // _HELD // 2:
            buckets.write()
            relation.saved.has_all = True
            self.save(relation, num_edges)

    def save(self, relation: _Relation, num_edges: int) -> None:
        """Write to state.json that the first `num_edges` edges of `relation` are in its file."""
        relation.saved.edges = num_edges
        saved = [asdict(other.saved) for other in self.relations]
        fields = {"version": _VERSION, "boot": _boot(), "asked": self._asked, "relations": saved}
        write_text(self.folder / _STATE, json.dumps(fields))

    def goes_on(self, folder: Path) -> bool:
        """Return whether a killed build with the same arguments can go on in `folder`. If so, take over its progress.

        After a restart of the machine return False, since edges that had not reached the disk are lost.
        """
        try:
            state = json.loads(read_regular(folder / _STATE, _MOST_STATE_BYTES))
            if (state["version"], state["boot"], state["asked"]) != (_VERSION, _boot(), self._asked):
                return False
            progress = [*zip(self.relations, [_Saved(**fields) for fields in state["relations"]], strict=True)]
            for relation, saved in progress:
                self._new_buckets(folder, relation).take_written(saved.edges)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False
        for relation, saved in progress:
            relation.saved = saved
        return True


def _hashed(facts: Any) -> str:
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def _even(chunks: Iterator[Chunk], size: int) -> Iterator[Chunk]:
    """Yield the edges of `chunks` again, in the same order, in chunks of `size` edges; the last may have fewer."""
    kept: list[Chunk] = []
    count = 0
    for chunk in chunks:
        begin = 0
        while begin < len(chunk.src):
            kept.append(_part(chunk, begin, begin + size - count))
            taken = len(kept[-1].src)
            begin, count = begin + taken, count + taken
            if count == size:
                yield _joined(kept)
                kept, count = [], 0
    if count > 0:
        yield _joined(kept)


def _part(chunk: Chunk, begin: int, end: int) -> Chunk:
    attributes = {name: values[begin:end] for name, values in chunk.attributes.items()}
    return Chunk(chunk.src[begin:end], chunk.dst[begin:end], attributes)


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    src, dst = (np.concatenate(ends) for ends in zip(*((chunk.src, chunk.dst) for chunk in chunks), strict=True))
    attributes = {name: torch.cat([chunk.attributes[name] for chunk in chunks]) for name in chunks[0].attributes}
    return Chunk(src, dst, attributes)


def _digest_of(chunk: Chunk) -> str:
    ends = (torch.from_numpy(column.astype(np.int64)) for column in (chunk.src, chunk.dst))
    digests = [array_digest(values) for values in (*ends, *chunk.attributes.values())]
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()


# --- the second pass


def _write(state: _State, form: str, num_nodes: Mapping[Any, int], of_nodes: Mapping[Any, Any], say: Progress) -> None:
    relations, most_bytes = state.relations, state.most_bytes - state.held_bytes
    listed, num_edges = [], {}
    for number, relation in enumerate(relations):
        assert relation.buckets is not None
        count = num_edges[relation.edge_type] = int(relation.buckets.counts.sum())
        listed.append(Array(("indptr", number, ""), torch.int64, (relation.num_dst + 1,), ()))
        for name, column in relation.columns.items():
            listed.append(Array(_place(number, name), column.dtype, (count, *column.shape), ()))
    for number, attributes in enumerate(of_nodes.values()):
        for name, rows in attributes.items():
            shape = (rows.count, *rows.column.shape)
            listed.append(Array(("node_attributes", number, name), rows.column.dtype, shape, ()))
    numbers = {array.place: number for number, array in enumerate(listed)}
    with ArenaWriter(state.folder / ARRAYS, planned(listed), TOPOLOGY) as arrays:
        for number, relation in enumerate(relations):
            assert relation.buckets is not None
            done = 0
            indptr = numbers["indptr", number, ""]
            arrays.put(indptr, torch.zeros(1, dtype=torch.int64))
            for some in relation.buckets.sorted(most_bytes):
                arrays.put(indptr, some.degrees.cumsum(0).add_(done))
                for name, values in some.columns.items():
                    arrays.put(numbers[_place(number, name)], values)
                done += some.columns["indices"].shape[0]
                say(f"sort {relation.title}", done, num_edges[relation.edge_type])
            relation.buckets = None
        for number, attributes in enumerate(of_nodes.values()):
            for name, rows in attributes.items():
                for piece in _pieces(rows):
                    arrays.put(numbers["node_attributes", number, name], piece)
        arena = arrays.finished()
    counts = {node_type: num_nodes[node_type] for node_type in of_nodes}
    write_text(state.folder / HEADER, header_of(form, counts, num_edges, arena, state.built_of))


def _place(number: int, column: str) -> Place:
    if column.startswith("attribute "):
        return "edge_attributes", number, column.removeprefix("attribute ")
    return column, number, ""


def _pieces(values: Values) -> Iterator[Tensor]:
    step = max(_PIECE_BYTES // max(values.column.row_bytes, 1), 1)
    for begin in range(0, values.count, step):
        yield values.read(begin, min(begin + step, values.count))
