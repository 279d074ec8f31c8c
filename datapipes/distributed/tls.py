"""TLSConfig: the certificates with which client and server prove to each other who they are."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from datapipes.base.checks import shown
from datapipes.base.files import read_regular
from datapipes.distributed.addresses import Address

__all__ = ["TLSConfig"]

_PEM = b"-----BEGIN "
_MOST_BYTES = 2**20


class Pem(NamedTuple):
    """The content of the three files of a TLSConfig, as bytes in the format PEM."""

    cert: bytes
    key: bytes
    ca: bytes


@dataclass(frozen=True)
class TLSConfig:
    """Mutual TLS: each side shows its own certificate, and accepts only certificates that the authority has signed.

    The files are PEM. A server reads them when it starts, and a client for each new connection. So a renewed
    certificate is used by a server after its next start, and by a client with its next connection.

    Attributes:
        cert: path of this side's certificate, followed by intermediate certificates, if any.
        key: path of the private key of `cert`, without a password.
        ca: path of the certificate of the authority that signs the other side's certificates.
    """

    cert: str | Path
    key: str | Path
    ca: str | Path

    def __post_init__(self) -> None:
        for name in ("cert", "key", "ca"):
            value = getattr(self, name)
            if not isinstance(value, (str, os.PathLike)):
                raise TypeError(f"TLSConfig: {name} must be the path of a file, got {shown(value)}.")

    def read(self, where: str) -> Pem:
        """Read the three files and return their content.

        Raises:
            OSError: A file cannot be read; the message names it.
            ValueError: A file is not PEM, no regular file, or larger than 1 MiB.
        """
        return Pem(*(_read(where, name, Path(getattr(self, name))) for name in Pem._fields))

    def checked(self, where: str) -> Pem:
        """Read the three files, check that they can be used, and return their content. With bad files connecting would
        fail later, with an error that gives no reason.

        Raises:
            OSError: A file cannot be read; the message names it.
            ValueError: As in `read`; a file has no certificate or key; or certificate and key do not belong together.
        """
        pem = self.read(where)
        for name in ("cert", "ca"):
            path, context = getattr(self, name), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(cadata=getattr(pem, name).decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(
                    f"{where}: {name} of the TLSConfig, {path}, holds no certificate that can be read ({error}). Give "
                    "a file of certificates, PEM."
                ) from error
        if b"PRIVATE KEY-----" not in pem.key:
            raise ValueError(
                f"{where}: key of the TLSConfig, {self.key}, holds no private key. Give the one that belongs to "
                f"{self.cert}, PEM."
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                f"{where}: key of the TLSConfig, {self.key}, is damaged or does not fit the certificate {self.cert} "
                f"({error}). Give a certificate and its own private key, without a password."
            ) from error
        return pem


def check_tls(where: str, tls: Any, insecure: Any) -> None:
    """Check the arguments `tls` and `insecure` of a caller.

    Raises:
        TypeError: `tls` is neither a TLSConfig nor None, or `insecure` is no bool.
        ValueError: Both are set.
    """
    if tls is not None and not isinstance(tls, TLSConfig):
        raise TypeError(f"{where}: tls must be a TLSConfig or None, got {shown(tls)}. Pass TLSConfig(cert, key, ca).")
    if not isinstance(insecure, bool):
        raise TypeError(f"{where}: insecure must be True or False, got {shown(insecure)}.")
    if insecure and tls is not None:
        raise ValueError(f"{where}: got tls and insecure=True, which exclude each other. Leave insecure out.")


def refuse_plain(where: str, address: Address, tls: TLSConfig | None, insecure: bool) -> None:
    """Raise ValueError if other machines can reach `address`, `tls` is None, and `insecure` is False.

    Without TLS anybody who reaches the address can send requests, and anybody between client and server can forge
    answers.
    """
    if tls is None and not insecure and not address.is_loopback:
        raise ValueError(
            f"{where}: {address} is not a loopback address, and there is no TLS: anybody could ask and answer. "
            "Pass tls=TLSConfig(cert, key, ca); or insecure=True, in a network where every machine is trusted."
        )


def _read(where: str, name: str, path: Path) -> bytes:
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise type(error)(
            error.errno, f"{where}: {name} of the TLSConfig, {str(path)!r}, cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{where}: {name} of the TLSConfig cannot be read: {error}") from error
    if _PEM not in content:
        raise ValueError(
            f"{where}: {name} of the TLSConfig, {path}, is not PEM. Convert it (openssl x509, openssl pkey)."
        )
    return content
