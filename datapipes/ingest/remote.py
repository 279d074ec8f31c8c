"""Files at a URI, such as `gs://bucket/file`, `s3://`, `memory://` or `http://`, read through fsspec.

A file is fetched in blocks while it is read, and never stored on this machine: copies would need disk space for all
files, and would have to be removed after a kill. So reading a file twice fetches it twice. Size and version (an etag, a
checksum or a time, whichever the store has) are checked before and after each reading; a change is an error.

Credentials, timeouts and retries are options of fsspec's file systems; fsspec's configuration sets them for each
scheme. Nothing here retries. Whatever a store raises becomes an OSError.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from datapipes.base.checks import one_line, shown
from datapipes.base.errors import needed, sentence, text_of
from datapipes.base.files import open_regular

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = "file://"
_BLOCK_BYTES = 2**23  # fetched at once; an open file has at most two such blocks in memory
_MOST_TEXT = 300  # characters of the message of a store
_VERSIONS = (  # keys of a store's file information that change with the content; lower case, letters only
    *("etag", "generation", "versionid", "checksum", "digest", "md5", "md5hash", "contentmd5", "crc32c"),
    *("mtime", "modified", "lastmodified", "modificationtime", "updated", "created"),
)


def is_uri(value: Any) -> bool:
    """Return whether a value is a str with the URI of a remote file. A `file://` URI is local: return False."""
    return isinstance(value, str) and not value.startswith(_LOCAL) and _URI.match(value) is not None


def local_path(where: str, name: str, text: str) -> str:
    """Return the local path that `text` names, as a path or as a `file:///` URI. ValueError for any other URI."""
    path = text.removeprefix(_LOCAL) if text.startswith("file:///") else text
    if "://" in path:
        raise ValueError(
            f"{where}: {name} must be a path of this machine, or file:///path, got {shown(text)}. Copy the files here, "
            "or mount their store, and pass the path."
        )
    return path


class RemoteFile:
    """A file at a URI, read through fsspec, with a check that it does not change.

    The first `look` records size and version of the file. A later `look` raises ValueError if they differ.

    Attributes:
        uri: the URI.
        name: the last part of the URI.
    """

    def __init__(self, uri: str, listed_bytes: int | None = None) -> None:
        self.uri, self.name = uri, uri.rpartition("/")[2]
        self._listed_bytes = listed_bytes
        self._seen: tuple[int, str] | None = None

    def __str__(self) -> str:
        return self.uri

    @property
    def size(self) -> int:
        """The size of the file in bytes, from the listing of its folder or from the first `look`."""
        if self._seen is None and self._listed_bytes is not None:
            return self._listed_bytes
        return self._first_look()[0]

    @property
    def identity(self) -> tuple[str, int, str] | None:
        """(URI, size in bytes, version) of the file; None if the store gives no version."""
        size, version = self._first_look()
        return (self.uri, size, version) if version else None

    def _first_look(self) -> tuple[int, str]:
        return self._seen or self.look()

    def look(self) -> tuple[int, str]:
        """Ask the store for the size and the version of the file, and return (size, version).

        Raises:
            ValueError: Size or version differ from the first look.
            OSError: The store gives no answer.
        """
        system, path = _system_of(self.uri)
        with _as_os_error(self.uri):
            info = system.info(path)
        if info["type"] != "file" or info.get("size") is None:
            reason = "is no file" if info["type"] != "file" else "has no length: its server gives none"
            raise OSError(errno.EINVAL, f"it {reason}; copy it to this machine", self.uri)
        facts = {re.sub(r"[^a-z0-9]", "", key.lower()): value for key, value in info.items()}
        version = ", ".join(f"{key} {facts[key]}" for key in _VERSIONS if facts.get(key))
        seen = int(info["size"]), version
        if self._seen not in (None, seen):
            raise ValueError(
                f"{self} was changed while it was read: it had {_text(self._seen)}, and has {_text(seen)}; it must "
                "stay as it is. Begin again when it is whole."
            )
        self._seen = seen
        return seen

    def open(self, block_bytes: int = _BLOCK_BYTES) -> BinaryIO:
        """Open the file for reading and return it; it can seek. Reads raise OSError, or ValueError at an early end.

        Args:
            block_bytes: bytes to fetch at once.
        """
        size, _ = self.look()
        system, path = _system_of(self.uri)
        with _as_os_error(self.uri):
            file = system.open(path, "rb", block_size=block_bytes, cache_type="readahead")
        return cast(BinaryIO, io.BufferedReader(_Reading(self.uri, file, size)))


def _text(seen: tuple[int, str] | None) -> str:
    assert seen is not None
    return f"{seen[0]} bytes ({seen[1] or 'no version'})"


class _Reading(io.RawIOBase):
    """A raw stream over an open file of fsspec. Whatever error the store raises becomes an OSError."""

    def __init__(self, uri: str, file: Any, size: int) -> None:
        self._uri, self._file, self._size = uri, file, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        begin = self.tell()
        with _as_os_error(self._uri):
            count = int(self._file.readinto(buffer))
        if count == 0 and len(buffer) > 0 and begin < self._size:
            raise ValueError(f"{self._uri} ends after {begin} of {self._size} bytes. Write or copy it again.")
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


AnyFile = Path | RemoteFile


def size_of(file: AnyFile) -> int:
    """Return the size of a file in bytes."""
    return file.stat().st_size if isinstance(file, Path) else file.size


@contextmanager
def opened(file: AnyFile, block_bytes: int = _BLOCK_BYTES) -> Iterator[tuple[BinaryIO, int]]:
    """Context manager: open a local file or a file at a URI, and give (open file, its size in bytes).

    At the end, check that a file at a URI has not changed.

    Args:
        block_bytes: bytes to fetch at once from a URI.
    Raises:
        ValueError: The file is not regular, or has changed.
        OSError: The file cannot be opened.
    """
    if isinstance(file, Path):
        with open_regular(file) as stream:
            yield stream, os.fstat(stream.fileno()).st_size
        return
    with file.open(block_bytes) as stream:
        try:
            yield stream, file.size
        except ValueError:
            file.look()  # a changed file may look damaged, so say that it changed
            raise
    file.look()


def files_in(where: str, uri: str) -> list[RemoteFile]:
    """List the folder at a URI: return the files directly in it, sorted by name.

    Raises:
        OSError: The folder cannot be listed.
        FileNotFoundError: The folder does not exist, or is empty in a store that has no real folders.
        ModuleNotFoundError: The package for the scheme is not installed.
        ValueError: fsspec does not know the scheme.
    """
    with _told(where, uri):
        system, path = _system_of(uri)
        with _as_os_error(uri):
            entries = system.ls(path, detail=True)
    files = {}
    for entry in entries:
        folder, _, name = entry["name"].rpartition("/")
        # HTML pages that list files have other links, too.
        if entry["type"] == "file" and folder.rstrip("/") == path.rstrip("/") and name[:1] not in "?#":
            files[name] = RemoteFile(f"{uri.rstrip('/')}/{name}", entry.get("size"))
    return [files[name] for name in sorted(files)]


def files_at(where: str, uri: str) -> list[RemoteFile]:
    """Return the file at a URI. If a folder is there, return its files, without names that begin with "." or "_".

    Files are sorted by name. HTTP has no folders: a URI that ends in "/" is taken for a folder, any other URI for a
    file.

    Raises:
        The errors of `files_in`.
    """
    if not uri.endswith("/"):
        with _told(where, uri):
            system, path = _system_of(uri)
            with _as_os_error(uri):
                is_file = system.info(path)["type"] == "file"
        if is_file:
            return [RemoteFile(uri)]
    return [file for file in files_in(where, uri) if not file.name.startswith((".", "_"))]


def _system_of(uri: str) -> tuple[Any, str]:
    """Return (file system, path in it) for a URI: a file system of fsspec, whose cached listings have been dropped."""
    core, scheme = needed("fsspec.core", "remote", f"reading {uri}"), uri.partition("://")[0]
    try:
        core.get_filesystem_class(scheme)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{uri} is read by a package that is not installed, or cannot be imported: {sentence(error)} Install that "
            "package."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"the scheme of {uri} must be one that fsspec knows, such as gs, s3 or http, got {scheme!r}. Correct it."
        ) from error
    with _as_os_error(uri):
        system, path = core.url_to_fs(uri)
        system.invalidate_cache()
    return system, path


@contextmanager
def _told(where: str, uri: str) -> Iterator[None]:
    """Context manager: if reading `uri` fails inside, raise the error again with `where` and a remedy in the text."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{where}: the address cannot be read ({error.strerror}). Check it", uri) from error
    except (ValueError, ModuleNotFoundError) as error:
        raise type(error)(f"{where}: {error}") from error


@contextmanager
def _as_os_error(uri: str) -> Iterator[None]:
    """Context manager: turn any error of a store into an OSError; `strerror` has a short reason."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise OSError(*_number_and_reason(uri, error), uri) from error


def _number_and_reason(uri: str, error: BaseException) -> tuple[int, str]:
    if uri.startswith("http") and isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # fsspec raises this class for any failure
    status = error.status if hasattr(error, "status") else getattr(error, "code", None)  # of HTTP
    text = one_line(f"{type(error).__name__}: {text_of(error)}")[:_MOST_TEXT]
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return errno.ENOENT, "nothing is there"
    if isinstance(error, PermissionError) or status in (401, 403) or "Credential" in type(error).__name__:
        return errno.EACCES, f"{text}; log in, or give the keys: see the documentation of this store's package"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return errno.ETIMEDOUT, "no answer came in time; check that the server runs"
    return getattr(error, "errno", None) or errno.EIO, f"{text}; check that the server runs and can be reached"
