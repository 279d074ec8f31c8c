"""Files at URIs: what a store does, in a few words of an OSError; what it tells of a file that has changed."""

import errno
import io

import pytest
from pipelines import refused
from remote_files import place_of

from datapipes.ingest.remote import RemoteFile, files_at, files_in, is_uri, local_path, opened

fsspec = pytest.importorskip("fsspec", reason="URIs need fsspec")


class DefaultCredentialsError(Exception):
    """As a package of a store has one."""


class Odd(fsspec.AbstractFileSystem):
    """A store whose files do what their names say."""

    protocol = "odd"
    cachable = False

    def info(self, path, **how):
        if path == "denied":
            raise DefaultCredentialsError("no default credentials were found\nat all")
        if path == "memory":
            raise MemoryError
        return {"name": path, "type": "file", "size": None if path == "endless" else 9, "ETag": path}

    def ls(self, path, detail=True, **how):
        raise NotImplementedError

    def open(self, path, mode="rb", **how):
        return io.BytesIO(b"short")


@pytest.fixture(autouse=True)
def odd():
    fsspec.register_implementation("odd", Odd, clobber=True)


def test_what_is_a_uri(refuses):
    assert [is_uri(each) for each in ("gs://b/x", "S3+x.y-z://", "memory://x")] == [True] * 3
    assert [is_uri(each) for each in ("x", "/a://b", "file:///x", "file://x", "://x", "a::b://x", 7, None)] == [
        False
    ] * 8
    assert local_path("here", "name", "file:///a/b") == "/a/b"
    assert local_path("here", "name", "a:/b") == "a:/b"
    refuses(ValueError, local_path, "here", "name", "gs://b")


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("denied", errno.EACCES, r"DefaultCredentialsError: no default credentials were found\\nat all; log in"),
        ("endless", errno.EINVAL, "no length.*copy it"),
    ],
)
def test_what_a_store_raises_is_an_os_error(name, number, told):
    with pytest.raises(OSError, match=told) as caught:
        RemoteFile(f"odd://{name}").open()
    assert (caught.value.errno, caught.value.filename) == (number, f"odd://{name}")


def test_too_little_memory_stays_what_it_is():
    with pytest.raises(MemoryError):
        RemoteFile("odd://memory").look()


def test_a_folder_that_cannot_be_listed_and_a_file_that_ends_too_early(refuses):
    refuses(OSError, files_in, "here", "odd://folder")
    (file,) = files_at("here", "odd://file")
    with opened(file) as (stream, size):
        assert (stream.read(5), size) == (b"short", 9)
        refuses(ValueError, stream.read, 1)


def test_a_file_is_one_as_long_as_its_store_says_the_same_of_it(tmp_path):
    with place_of("memory", tmp_path) as place:
        place.put("f/b", b"hello")
        place.put("f/a", b"hi")
        place.put("f/deeper/c", b"")
        found = files_in("here", f"{place.uri}/f")
        assert [(each.name, each.uri, each.size) for each in found] == [
            ("a", f"{place.uri}/f/a", 2),
            ("b", f"{place.uri}/f/b", 5),
        ]
        file = found[1]
        with file.open() as stream:
            assert (stream.seek(-2, io.SEEK_END), stream.read(), stream.seek(1), stream.read(2)) == (3, b"lo", 1, b"el")
        before = file.identity
        place.put("f/b", b"HELLO")
        with refused(ValueError, stage=file.uri, found="5 bytes .created", allowed="stay as it is", remedy="Begin"):
            file.open()
        assert RemoteFile(file.uri).identity[:2] == before[:2]
        assert RemoteFile(file.uri).identity != before
        place.remove("f/b")
        with pytest.raises(FileNotFoundError, match="nothing is there"):
            file.look()
