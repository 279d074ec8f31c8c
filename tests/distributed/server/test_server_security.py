"""Who is let in: certificates of one authority, and nobody else; the server lives, and its memory is bounded."""

import contextlib
import dataclasses
import os
import socket
from pathlib import Path

import pyarrow.flight as flight
import pytest
import torch
from partition_servers import ServerProcess
from plain_clients import PlainClient

from datapipes.distributed import PartitionServer, TLSConfig
from datapipes.distributed.requests.rows import Rows, RowsRequest

GROWTH = 32 * 2**20  # bytes


@pytest.fixture(scope="module")
def server(root, ours):
    tls = ["--tls-cert", ours.server.cert, "--tls-key", ours.server.key, "--tls-ca", ours.ca]
    with ServerProcess(root, 0, *tls, address="127.0.0.1:0") as server:  # which the certificate names
        yield server


def options_of(tls: TLSConfig, ca: Path | None = None) -> dict:
    """What a client of Flight takes: its own certificate, and the authority that it believes."""
    return {
        "tls": True,
        "tls_root_certs": Path(ca or tls.ca).read_bytes(),
        "cert_chain": Path(tls.cert).read_bytes(),
        "private_key": Path(tls.key).read_bytes(),
    }


def expect_served(server: ServerProcess, ours) -> None:
    with PlainClient(server.address, **options_of(ours.client)) as client:
        assert client.hello()[0] == 0
        assert client.answer(RowsRequest((Rows("node", None, ("y",), torch.tensor([0, 2])),)))[0].shape == (2,)


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


@pytest.mark.parametrize(
    "which", ["no certificate", "of another authority", "expired", "plaintext", "another authority"]
)
def test_others_are_refused_and_the_server_lives(server, ours, theirs, which):
    address, options = {
        "no certificate": (server.address, {"tls": True, "tls_root_certs": ours.ca.read_bytes()}),
        "of another authority": (server.address, options_of(theirs.client, ours.ca)),
        "expired": (server.address, options_of(ours.expired)),
        "plaintext": (server.address, {}),
        "another authority": (server.address, options_of(ours.client, theirs.ca)),  # it is the server that is refused
    }[which]
    expect_served(server, ours)
    before = resident(server.pid)
    for _ in range(20):
        with PlainClient(address, **options) as client, pytest.raises(flight.FlightUnavailableError):
            client.say("health")
    assert resident(server.pid) - before < GROWTH
    expect_served(server, ours)


def test_garbage_on_the_port_is_refused_and_the_server_lives(server, ours):
    host, _, port = server.address.rpartition(":")
    expect_served(server, ours)
    before = resident(server.pid)
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 2**16, bytes(2**20)):
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=20) as sock, contextlib.suppress(ConnectionError):
                sock.sendall(data)
    assert resident(server.pid) - before < GROWTH
    expect_served(server, ours)


def test_a_key_of_another_certificate_is_told_at_the_start(root, ours, theirs):
    with pytest.raises((OSError, ValueError), match="does not fit the certificate"):
        PartitionServer(root, 0, tls=TLSConfig(ours.server.cert, theirs.server.key, ours.ca)).start()


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("FIFO", "is a FIFO; a regular file is needed"),
        ("device", "is a device; a regular file is needed"),
        ("large", "has 1048577 bytes; at most 1048576"),
        ("half", "holds no certificate that can be read|is damaged or does not fit the certificate"),
        ("other", "holds no certificate that can be read|holds no private key"),
    ],
)
def test_a_file_of_the_certificates_that_is_something_else_is_named_with_what_is_wrong(
    root, ours, tmp_path, name, content, found
):
    path, good = tmp_path / "file.pem", getattr(ours.server, name)
    if content == "FIFO":
        os.mkfifo(path)
    elif content == "device":
        path.symlink_to("/dev/zero")
    elif content == "large":
        path.write_bytes(bytes(2**20 + 1))
    elif content == "half":
        path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    else:
        path.write_bytes((ours.server.cert if name == "key" else ours.server.key).read_bytes())
    with pytest.raises(ValueError, match=rf"PartitionServer: {name} of the TLSConfig.*({found})") as caught:
        PartitionServer(root, 0, tls=dataclasses.replace(ours.server, **{name: path})).start()
    assert str(path) in str(caught.value)
    assert "port" not in str(caught.value)
