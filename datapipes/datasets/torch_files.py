"""Read a dict of arrays that torch saved, as OGB publishes splits of links.

Invariant: no code of a file runs, and no setting of the process changes. A file of numpy arrays is read by
plain_pickle.py. One of dense tensors, and of nothing else that a pickle can name, is read by torch with
weights_only=True, if it is the zip archive that torch >= 1.6 writes, no larger unpacked than the file. Everything else
is refused with `DatasetFormatError`.
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
from datapipes.datasets.plain_pickle import MAX_FILE_BYTES, array_of, fields_of, parse_pickles
from datapipes.datasets.raw import DatasetFormatError, content_of

_OF_TENSORS = frozenset(
    {
        *("torch._utils _rebuild_tensor_v2", "collections OrderedDict"),
        *(f"torch {kind}Storage" for kind in ("Bool", "Byte", "Char", "Short", "Int", "Long", "Float", "Double")),
    }
)
_LEGACY_PICKLES = 4  # a magic number, the version, the system, the object; torch < 1.6 wrote them so


def read_saved(path: Path) -> dict[str, Any]:
    """Return the arrays of a dict that torch saved; its values are numpy arrays or tensors, [n] or [n, k].

    A value beside numpy arrays may also be a list of texts, and stays one.

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
    """Return the pickle in the archive; refuse one that unpacking makes larger: torch stores, and does not pack."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        members = archive.infolist()
        pickles = [member for member in members if member.filename.endswith("data.pkl")]
        if len(pickles) == 1 and sum(member.file_size for member in members) <= len(content):
            return archive.read(pickles[0])
    except Exception as error:  # zipfile raises nearly anything on corrupt archives
        found = f"a broken archive ({type(error).__name__}: {str(error)[:200]})"
        raise DatasetFormatError.of(file, found, "a file that torch saved") from error
    raise DatasetFormatError.of(file, "a packed archive, or none with one data.pkl", "a file that torch saved")


def _plain(file: str, found: object) -> dict[str, Any]:
    return {
        key: value if _is_texts(value) else array_of(file, value, repr(key))
        for key, value in fields_of(file, found, "an object").items()
    }


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(each) is str for each in value)


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
