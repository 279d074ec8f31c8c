"""Read the split of links of an OGB data set: the edges that exist and those that do not, of each part.

OGB publishes train.pt, valid.pt and test.pt, each a dict that torch saved. Its keys are edge and edge_neg, [n, 2], or
source_node [n], target_node [n] and target_node_neg [n, k]: k destinations for each source. Here the same arrays may
also be in one npz file, as PART_KEY; without train_edge in it the edges of the graph train.

Invariant: no code of a file runs. A .pt file of numpy arrays is read by plain_pickle.py. One of dense tensors, and of
nothing else that a pickle can name, is read by torch with weights_only=True, if it is the zip archive that torch >= 1.6
writes, not packed, of limited size.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datapipes.base.checks import shown
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.plain_pickle import MAX_FILE_BYTES, array_of, fields_of, parse_pickles
from datapipes.datasets.raw import MAX_FEATURE_BYTES, DatasetFormatError, content_of
from datapipes.datasets.raw_hetero import RawItems
from datapipes.datasets.text import ids_of

_PARTS = ("train", "valid", "test")
_OF_QUERIES = ("source_node", "target_node", "target_node_neg")
_OF_TENSORS = frozenset(
    {
        *("torch._utils _rebuild_tensor_v2", "collections OrderedDict"),
        *(f"torch {kind}Storage" for kind in ("Bool", "Byte", "Char", "Short", "Int", "Long", "Float", "Double")),
    }
)
_LEGACY_PICKLES = 4  # a magic number, the version, the system, the object; torch < 1.6 wrote them so


def read_link_split(folder: Path, edges: np.ndarray, num_nodes: int) -> list[RawItems]:
    """Return the items of train, validation and test.

    Args:
        folder: Holds {train,valid,test}.pt or one npz file.
        edges: int64 [n, 2], the edges of the graph as in the files.
        num_nodes: All ends are below.
    Returns:
        Train has the edges that exist, without labels. Validation and test have the edges that exist, label 1, then
        those that do not, label 0. With k destinations for each source they have `indexes`, the number of the source
        in the file: one edge that exists and its k others, source by source. A key "year" gives `timestamps` to train,
        and to the other parts if they have no edges that do not exist.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile, or has other keys.
    """
    archives = sorted(folder.glob("*.npz"))
    if not (folder / "valid.pt").exists() and len(archives) == 1:
        arrays = NpzArrays(archives[0].name, content_of(archives[0]))
        tables = [
            {key.removeprefix(f"{part}_"): arrays.get(key) for key in sorted(arrays.keys) if key.startswith(f"{part}_")}
            for part in _PARTS
        ]
        files = [archives[0].name] * 3
        if not tables[0]:
            tables[0] = {"edge": edges}
    else:
        paths = [folder / f"{part}.pt" for part in _PARTS]
        files, tables = [path.name for path in paths], [read_saved(path) for path in paths]
    train, *others = (_items(*each, num_nodes) for each in zip(files, tables, strict=True))
    existing = train.seeds if train.labels is None else train.seeds[train.labels == 1]
    first = RawItems(existing, None, train.timestamps if train.labels is None else None)
    return [first, *others]


def _items(file: str, table: dict[str, np.ndarray], num_nodes: int) -> RawItems:
    if set(_OF_QUERIES[:2]) <= table.keys():
        return _of_queries(file, table, num_nodes)
    if "edge" not in table:
        allowed = "edge and edge_neg, or source_node, target_node and target_node_neg"
        raise DatasetFormatError.of(file, f"the keys {shown(sorted(table))}", allowed)
    positive = _ids(file, "edge", table["edge"], (None, 2), num_nodes)
    if "edge_neg" not in table:
        year = table.get("year")
        times = None if year is None else _ids(file, "year", year.ravel(), (len(positive),), 2**62)
        return RawItems(positive, None, times)
    negative = _ids(file, "edge_neg", table["edge_neg"], (None, 2), num_nodes)
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    return RawItems(np.concatenate([positive, negative]), labels)


def _of_queries(file: str, table: dict[str, np.ndarray], num_nodes: int) -> RawItems:
    sources = _ids(file, "source_node", table["source_node"], (None,), num_nodes)
    targets = _ids(file, "target_node", table["target_node"], sources.shape, num_nodes)
    if "target_node_neg" not in table:
        return RawItems(np.stack([sources, targets], axis=1))
    others = _ids(file, "target_node_neg", table["target_node_neg"], (len(sources), None), num_nodes)
    width = 1 + others.shape[1]
    if 32 * width * len(sources) > MAX_FEATURE_BYTES:
        found = f"{width} destinations for each of {len(sources)} sources"
        raise DatasetFormatError.of(file, found, f"at most {MAX_FEATURE_BYTES} bytes of pairs")
    destinations = np.concatenate([targets[:, None], others], axis=1).ravel()
    labels = np.tile(np.arange(width) == 0, len(sources)).astype(np.int64)
    queries = np.repeat(np.arange(len(sources)), width)
    return RawItems(np.stack([sources[queries], destinations], axis=1), labels, indexes=queries)


def _ids(file: str, key: str, array: np.ndarray, shape: tuple[int | None, ...], limit: int) -> np.ndarray:
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu":
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        found = f"{key!r} of {array.dtype}{list(array.shape)}"
        raise DatasetFormatError.of(file, found, f"whole numbers of shape [{wanted}]")
    return np.ascontiguousarray(ids_of(file, array, limit, f"number in {key!r},").astype(np.int64))


def read_saved(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a dict that torch saved; its values are numpy arrays or tensors, [n] or [n, k].

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken or hostile, or holds something else.
    """
    content = content_of(path, MAX_FILE_BYTES)
    if not content.startswith(b"PK"):
        return _plain(path.name, parse_pickles(path.name, content, _LEGACY_PICKLES)[-1])
    pickled = _check_archive(path.name, content)
    try:
        return _plain(path.name, parse_pickles(path.name, pickled)[0])
    except DatasetFormatError as of_plain:  # tensors, or something that torch refuses too
        _check_globals(path.name, pickled, of_plain)
        return _tensors(path.name, content)


def _check_archive(file: str, content: bytes) -> bytes:
    """Return the pickle in the archive; refuse one that is packed, so that unpacking cannot make it large."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = archive.infolist()
        pickles = [member for member in members if member.filename.endswith("data.pkl")]
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if len(pickles) == 1 and stored and sum(member.file_size for member in members) <= len(content):
            return archive.read(pickles[0])
    except Exception as error:  # zipfile raises nearly anything on corrupt archives
        found = f"a broken archive ({type(error).__name__}: {str(error)[:200]})"
        raise DatasetFormatError.of(file, found, "a file that torch saved") from error
    raise DatasetFormatError.of(file, "a packed archive, or none with one data.pkl", "a file that torch saved")


def _plain(file: str, found: object) -> dict[str, np.ndarray]:
    return {key: array_of(file, value, repr(key)) for key, value in fields_of(file, found, "an object").items()}


def _check_globals(file: str, pickled: bytes, of_plain: DatasetFormatError) -> None:
    """Refuse a pickle that names more than dense tensors need, before torch sees it.

    Raises:
        DatasetFormatError: `of_plain` if the pickle names nothing of torch, so that it was meant for the plain reader.
    """
    try:
        named = {str(text) for opcode, text, _ in pickletools.genops(pickled) if opcode.name in ("GLOBAL", "INST")}
        stacked = any(opcode.name == "STACK_GLOBAL" for opcode, _, _ in pickletools.genops(pickled))
    except Exception:  # of a file that breaks off; what the plain reader found says as much
        raise of_plain from None
    others = sorted(named - _OF_TENSORS)
    if others and named & _OF_TENSORS and not stacked:
        found = f"the global {others[0][:80]} beside tensors"
        raise DatasetFormatError.of(
            file, found, "dense tensors of numbers", "Do not trust this file; nothing of it was run."
        )
    if others or stacked or not named:
        raise of_plain


def _tensors(file: str, content: bytes) -> dict[str, np.ndarray]:
    try:
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt archive can raise nearly anything; weights_only runs no code of it
        what = f"broken tensors ({type(error).__name__}: {str(error)[:200]})"
        raise DatasetFormatError.of(file, what, "a file that torch saved") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise DatasetFormatError.of(file, f"a {type(found).__name__}", "a dict with text for its keys")
    for key, value in found.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not 1 <= value.ndim <= 2:
            raise DatasetFormatError.of(file, f"{shown(key)} that is no tensor [n] or [n, k]", "plain tensors")
        if value.numel() * value.element_size() > len(content) or value.device.type != "cpu":
            raise DatasetFormatError.of(file, f"{shown(key)} of shape {list(value.shape)}", "numbers for all of it")
    return {key: value.detach().numpy() for key, value in found.items()}
