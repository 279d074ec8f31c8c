"""Certificates for tests, made by the openssl command: the five commands of docs/distributed.md, and wrong ones."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from datapipes.distributed import TLSConfig

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Certificates(NamedTuple):
    """An authority, and what it has signed."""

    ca: Path
    server: TLSConfig
    client: TLSConfig
    expired: TLSConfig


def openssl(folder: Path, *arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=60)


def make_certificates(folder: Path) -> Certificates:
    """Make an authority in a new folder, with certificates of a server, a client, and one that has expired."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    folder.mkdir(parents=True)
    openssl(folder, "req", "-x509", *KEY, "-days", 3650, "-subj", "/CN=my ca", "-keyout", "ca.key", "-out", "ca.pem")
    return Certificates(
        folder / "ca.pem",
        _signed(folder, "server", 365),
        _signed(folder, "client", 365),
        _signed(folder, "expired", -1),
    )


def _signed(folder: Path, name: str, days: int) -> TLSConfig:
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    request = ["req", *KEY, "-subj", f"/CN={name}", "-addext", names, "-keyout", f"{name}.key", "-out", f"{name}.csr"]
    openssl(folder, *request)
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", days]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    return TLSConfig(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")
