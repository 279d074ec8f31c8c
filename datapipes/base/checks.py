"""Argument checks shared by the stages. Each error names the stage, what was found, what is allowed, what to do.

The value found may be anything, also from a file: `shown` makes a short text of any value and never fails.
"""

from __future__ import annotations

import inspect
import numbers
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from datapipes.base.errors import sentence

INDEX_DTYPES = (torch.int32, torch.int64)
# Dtypes that ids may have. Not uint8: older programs have masks of that dtype.
INT_DTYPES = (*INDEX_DTYPES, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64)
INT_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # to view the bits of other dtypes
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MOST_BITS = 256  # of a number that a message writes out
MOST_SHOWN = 500  # characters of a value in a message
MOST_SECONDS = threading.TIMEOUT_MAX  # about 292 years; the clocks of the system count no further


def shown(value: Any) -> str:
    """Return a short text of any value for a message: the beginning of its repr.

    A large int is described by its number of bits, since Python refuses to write out more than 4,300 digits. If the
    repr raises, the text names the type and the error.
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"{'a negative' if value < 0 else 'an'} int of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception as error:  # the repr of a user's class may raise anything
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def reason(error: BaseException) -> str:
    """Return what is wrong in a file, as a short sentence, from the error of its reader."""
    if isinstance(error, KeyError):
        return f"it lacks {shown(error.args[0] if error.args else error)}."
    text = one_line(sentence(error))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def one_line(text: str) -> str:
    """Return `text` with escapes, such as \\x1b, for unprintable characters and line ends.

    A name in a file may hold characters that move a terminal's cursor or change its colors.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def aligned(rows: Sequence[Sequence[object]], most: int = 32) -> list[str]:
    """Return a table as lines of text, with the first column aligned to the left and the others to the right.

    Args:
        rows: the header, then the other rows.
        most: how many rows after the header are shown; a last line says how many are left out.
    """
    cells_of = [[_cell(cell) for cell in row] for row in rows[: most + 1]]
    widths = [max(map(len, column)) for column in zip(*cells_of, strict=True)]
    lines = []
    for first, *others in cells_of:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    rest = len(rows) - len(cells_of)
    return lines + ([f"... and {rest} more"] if rest > 0 else [])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def check_int(where: str, name: str, value: Any, low: int, high: int = INT64_MAX) -> int:
    """Return `value` as an int in [low, high]; refuse bool and float. `high` defaults to the largest int64."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{where}: {name} must be an int, got {shown(value)} ({type(value).__name__}). Pass an int.")
    if not low <= value <= high:
        allowed = f"{low} or more" if high == INT64_MAX and value < low else f"in [{low}, {high}]"
        raise ValueError(f"{where}: {name} must be {allowed}, got {shown(int(value))}. Choose an allowed value.")
    return int(value)


def check_bool(where: str, name: str, value: Any) -> bool:
    """Return `value` if it is True or False; else raise TypeError. A truthy string is usually a mistake."""
    if not isinstance(value, bool):
        raise TypeError(f"{where}: {name} must be True or False, got {shown(value)}. Pass one of the two.")
    return value


def check_float(where: str, name: str, value: Any, low: float, high: float, *, allowed: str = "") -> float:
    """Return `value` as a float if it is a number in [low, high]; `allowed` names the range in another way."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where}: {name} must be a number, got {shown(value)}. Pass a float.")
    number: Any = value
    if not low <= number <= high:
        found = f"{where}: {name} must be in {allowed or f'[{low}, {high}]'}, got {shown(value)}"
        raise ValueError(f"{found}. Choose an allowed value.")
    return float(number)


def check_choice(where: str, name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return `value` if it is one of `allowed`, else raise ValueError."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {name} must be one of {list(allowed)}, got {shown(value)}. Pass one of them.")
    return str(value)


def check_names(where: str, name: str, value: Any) -> list[str]:
    """Return `value`, a list or another sequence of names, as a list.

    A single str is refused: most likely one name was meant. Sets are refused since they have no order. Generators are
    refused since they can be read only once, and copies of a stage are built from the same arguments.
    """
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    names = [*value] if is_list else []
    if not is_list or not all(isinstance(entry, str) for entry in names):
        example = [value] if isinstance(value, str) else ["weight"]
        raise TypeError(f"{where}: {name} must be a list of names, got {shown(value)}. Write {shown(example)}.")
    return names


def check_positive_timeout(where: str, timeout: Any) -> float | None:
    """Return `timeout` if it is None, or a number of seconds above 0 and at most `MOST_SECONDS`; else raise."""
    advice = "Use None to wait without a limit."
    return None if timeout is None else check_seconds(where, "timeout", timeout, advice, allowed="None or seconds")


def check_seconds(where: str, name: str, value: Any, advice: str, *, allowed: str = "seconds") -> float:
    """Return `value` if it is a number of seconds above 0 and at most `MOST_SECONDS`, else raise ValueError.

    Args:
        advice: the last sentence of the error.
        allowed: what is allowed, in words for the error.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_SECONDS:
        most = f"{MOST_SECONDS:.0f}"
        raise ValueError(f"{where}: {name} must be {allowed} above 0 and at most {most}, got {shown(value)}. {advice}")
    return value


def as_tensor(where: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` as a dense tensor that shares its memory; NumPy arrays may be read-only (memory-mapped)."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind in "USMmV":
            raise TypeError(f"{where}: {name} has dtype {value.dtype}, which no tensor can hold. Pass numbers.")
        if not value.dtype.isnative:
            raise TypeError(
                f"{where}: {name} is not in the machine's native byte order (dtype {value.dtype.str}). Call "
                ".astype(array.dtype.newbyteorder('='))."
            )
        if any(stride < 0 for stride in value.strides):
            raise ValueError(
                f"{where}: {name} has a negative stride; tensors need positive ones. Call np.ascontiguousarray."
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            value = _from_numpy(where, name, value)
    if not isinstance(value, torch.Tensor):
        how = "Call .to_numpy()" if hasattr(value, "to_numpy") else "Convert it"
        raise TypeError(f"{where}: {name} must be a tensor or an array, got {type(value).__name__}. {how}.")
    if value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"{where}: {name} must be a dense tensor, got layout {value.layout}. Call .to_dense().")
    return value.detach()


def tensor_of(where: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` as a tensor. A tensor or an array is viewed, not copied.

    A list, a tuple, a range or a table's column is copied.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return as_tensor(where, name, value)
    if not (isinstance(value, (list, tuple, range)) or hasattr(value, "__array__")):
        raise TypeError(
            f"{where}: {name} is {shown(value)} ({type(value).__name__}). Pass a tensor, an array or a list of numbers."
        )
    try:
        array = np.array(value, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{where}: {name} is a {type(value).__name__} that makes no array of numbers. Pass a tensor. ({error})"
        ) from error
    return as_tensor(where, name, array)


def check_ids(where: str, name: str, value: Any) -> torch.Tensor:
    """Return `value`, ids [n] of any class that `tensor_of` takes, as an int32 or int64 tensor."""
    ids = tensor_of(where, name, value)
    if ids.ndim != 1:
        raise ValueError(f"{where}: {name} must have shape [n], got {list(ids.shape)}. {_how_to_flatten(ids)}.")
    if ids.numel() > 0 and ids.dtype not in INT_DTYPES:
        raise TypeError(f"{where}: {name} must be integers, got {dtype_name(ids.dtype)}. {how_to_get_ids(ids)}")
    return ids if ids.dtype in INDEX_DTYPES else ids.long()


def _how_to_flatten(values: torch.Tensor) -> str:
    if values.ndim == 0:
        return f"Pass a list of one: [{values.item()}]"
    return "Call .flatten()" if values.numel() == values.shape[0] else "Pass ids in 1 dimension"


def _from_numpy(where: str, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where}: {name} has dtype {array.dtype}, which no tensor can hold. Convert it.") from error


def check_within(where: str, name: str, ids: torch.Tensor, count: int, remedy: str) -> None:
    """Check that `ids`, a tensor of any shape, are in [0, count). `remedy` is the last sentence of the error.

    Raises:
        IndexError: An id is outside; the message names one such id and the limit.
    """
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= count:
        raise IndexError(f"{where}: {name} must be in [0, {count}), got {low if low < 0 else high}. {remedy}")


def check_index_tensor(
    where: str, name: str, value: Any, *, in_host: bool = True, is_kept: bool = True
) -> torch.Tensor:
    """Return `value`, a tensor or array, as a tensor if it is 1-D, contiguous and of int32 or int64; else raise.

    Args:
        in_host: True also requires host memory.
        is_kept: False if the caller only reads the ids now; the result may then be `value` itself, which saves a view.
    """
    is_plain = type(value) is torch.Tensor and value.dtype in INDEX_DTYPES and value.layout is torch.strided
    tensor = value if is_plain and not is_kept else as_tensor(where, name, value)
    if tensor.dtype not in INDEX_DTYPES:
        raise TypeError(
            f"{where}: {name} must be int32 or int64, got {dtype_name(tensor.dtype)}. {how_to_get_ids(tensor)}"
        )
    if tensor.ndim != 1:
        raise ValueError(f"{where}: {name} must have 1 dimension, got shape {tuple(tensor.shape)}. Flatten it.")
    if in_host and tensor.device.type != "cpu":
        raise ValueError(f"{where}: {name} must be in host memory, found it on {tensor.device}. Call .cpu().")
    if not tensor.is_contiguous():
        raise ValueError(f"{where}: {name} is not contiguous (stride {tensor.stride()}). Call .contiguous().")
    return tensor


def check_pairs(where: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` if it is an int32 or int64 tensor [n, 2] in host memory; else raise.

    Each row is the source and the destination of an edge.
    """
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.shape[1] != 2:
        is_index = isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[0] == 2
        raise ValueError(
            f"{where}: {name} must be a tensor [n, 2] of ids, with the source and the destination of an edge in each "
            f"row, got {list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__}. "
            f"{'Pass .t() of an edge_index' if is_index else 'Call torch.stack((sources, destinations), 1)'}."
        )
    check_index_tensor(where, name, value.reshape(-1))
    return value


def check_edge_index(where: str, name: str, value: Any) -> torch.Tensor:
    """Return `value`, node ids [2, num_edges], as a tensor of int32 or int64; sources in row 0, destinations in row 1.

    A tensor or array is viewed, on its device. Nested lists of ints, and pairs of tensors or arrays, are copied.
    """
    if isinstance(value, (list, tuple)):
        value = _stacked(where, name, value)
    edges = as_tensor(where, name, value)
    if edges.dtype not in INDEX_DTYPES:
        how = "Keep ids as int64: floats round large ones" if edges.is_floating_point() else "Call .long()"
        if edges.dtype == torch.bool:
            how = "From a matrix with True for each edge, take .nonzero().t()"
        raise TypeError(f"{where}: {name} must be int32 or int64, got {dtype_name(edges.dtype)}. {how}.")
    if edges.ndim != 2 or edges.shape[0] != 2:
        how = "Transpose it: .t()" if edges.ndim == 2 and edges.shape[1] == 2 else "Stack sources and destinations"
        raise ValueError(
            f"{where}: {name} must have shape [2, num_edges], sources and destinations, got {list(edges.shape)}. {how}."
        )
    return edges


def _stacked(where: str, name: str, rows: Any) -> Any:
    """Return `rows`, a nested list or a list of tensors or arrays, as one tensor or array."""
    try:
        if rows and all(isinstance(row, torch.Tensor) for row in rows):
            masks = [row for row in rows if row.dtype == torch.bool]  # stacked with ids, a mask would become ids
            return masks[0] if masks else torch.stack([*rows])
        array = np.array(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{where}: {name} is a {type(rows).__name__} whose rows have different lengths or kinds; [2, num_edges] is "
            f"needed, sources and destinations. Give equally many of both. ({error})"
        ) from error
    return array if array.size > 0 else array.astype(np.int64)


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the prefix, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_from_name(where: str, name: Any) -> torch.dtype:
    """Return the dtype of a name such as "bfloat16"; the inverse of `dtype_name`. Other names raise ValueError."""
    # Not getattr: torch imports some modules, which takes seconds, when their name is looked up.
    dtype = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"{where}: {shown(name)} is not the name of a dtype, such as 'float32'. The file may be corrupt."
        )
    return dtype


def how_to_get_ids(tensor: torch.Tensor) -> str:
    """Return a remedy for errors: how to get ids from `tensor`, which is a mask or has another dtype."""
    # .long() of a mask would give the ids 0 and 1.
    if tensor.dtype == torch.bool and tensor.ndim > 1:
        return "If each column is a mask, take the ids of one: mask[:, 0].nonzero().flatten()."
    if tensor.dtype == torch.bool:
        return "Take the ids where the mask is True: mask.nonzero().flatten()."
    return "Convert ids with .long(); of a mask, take mask.nonzero().flatten()."


OTHER_KEYWORDS: dict[str, dict[str, str]] = {}  # {class name: {other library's keyword: what to use}}, from compat/


def refuse_other_keywords(where: str, cls: type, keywords: Iterable[str]) -> None:
    """Raise TypeError for each of `keywords` that another library takes, and the constructor of `cls` does not.

    Python would raise TypeError too; this message says what to use instead.
    """
    for name in keywords:
        ours = _use_instead(cls, name)
        if ours is None:
            continue
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]  # of this very class
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if name not in parameters and not takes_any:
            raise TypeError(f"{where}: {cls.__name__} takes no {name!r}. Here: {ours}.")


def refuse_more_by_position(where: str, cls: type, arguments: Sequence[Any]) -> None:
    """Raise TypeError if there are more `arguments` than the constructor of `cls` takes by position.

    Other libraries take more arguments by position, in other orders. Python would raise TypeError too; this message
    names the arguments.
    """
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]  # of this very class
    if code is None or code.co_flags & inspect.CO_VARARGS or len(arguments) < code.co_argcount:
        return
    names, count = code.co_varnames, code.co_argcount
    taken = ", ".join(name for name in names[1:count] if name != "source")  # passed by the method of a stage
    more = ", ".join(map(shown, arguments[count - 1 :]))
    others = ", ".join(f"{name}=" for name in names[count : count + code.co_kwonlyargcount])
    how = f"Pass the others by name: {others}" if others else "Leave it out"
    raise TypeError(f"{where}: {cls.__name__} takes only {taken} by position, and got also {more}. {how}.")


def _use_instead(cls: type, name: str) -> str | None:
    """Return what to use in place of the keyword `name` of another library, as OTHER_KEYWORDS says.

    It is looked up for `cls` and its bases. None: there is no advice.
    """
    for base in cls.__mro__:
        rows = OTHER_KEYWORDS.get(base.__name__, {})
        if name in rows:
            return rows[name]
    return None


def names_in_code(classes: Iterable[type]) -> set[str]:
    """Return the names of attributes and globals that the methods of `classes` use.

    It serves to find a useless setting: no method reads an attribute whose name is not in the result.
    """
    functions = [function for cls in classes for function in vars(cls).values() if inspect.isfunction(function)]
    return {name for function in functions for name in inspect.unwrap(function).__code__.co_names}
