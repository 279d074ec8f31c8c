"""Open zip archives of unknown origin; npz files and files of torch are such.

Invariant: memory stays in proportion to the archive and to the sizes that its members state, also if these are false.
"""

from __future__ import annotations

import io
import zipfile

MAX_MEMBERS = 2**12
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile does not bound what others unpack to

_SIGNATURE = b"PK\x01\x02"  # before each entry of the directory


def open_archive(content: bytes) -> zipfile.ZipFile:
    """Return the archive in `content`.

    Raises:
        Exception: It is broken, or has more than about `MAX_MEMBERS` members; zipfile raises nearly anything.
    """
    count = content.count(_SIGNATURE)  # before zipfile makes an object of half a kilobyte for each
    if count > MAX_MEMBERS:
        raise ValueError(f"about {count} members, at most {MAX_MEMBERS} are allowed")
    return zipfile.ZipFile(io.BytesIO(content))


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member; no more than the size that it states is unpacked.

    Raises:
        Exception: It is broken, or packed in another way than `METHODS`.
    """
    if member.compress_type not in METHODS:
        raise ValueError(f"a member packed by method {member.compress_type}, {METHODS} are allowed")
    with archive.open(member) as stream:
        content = stream.read(member.file_size)  # read() would first unpack up to 2 GiB, and then cut
    if len(content) != member.file_size:
        raise EOFError(f"{len(content)} of {member.file_size} bytes")
    return content
