"""Addresses through the store of torchrun: servers publish theirs, clients read them."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable
from typing import Any

from datapipes.base.checks import check_int, shown
from datapipes.distributed.address import Address, parse_address
from datapipes.partition.id_maps import MOST_PARTS

__all__ = ["publish_address"]

_PUBLISH = "publish_address"
_KEY = "datapipes/address/{}"
_STORE_S = 30.0  # for one question to the store
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def publish_address(part: int, address: str, store: Any = None) -> None:
    """Tell where the server of a part is to all who connect with the namebook "torchrun".

    Any process may do so that reaches the store, such as the rank beside the server. May be called again.

    Args:
        part: the number of the part.
        address: "host:port", where the ranks of all machines reach the server; `PartitionServer.start` returns it.
        store: a store of torch.distributed; by default that of the process group, or without one that of torchrun.
    Raises:
        ValueError: It is no address, or another one was published for the part.
        RuntimeError: There is no store.
    """
    check_int(_PUBLISH, "part", part, 0, MOST_PARTS - 1)
    given = parse_address(_PUBLISH, "address", address)
    if given.is_any:
        raise ValueError(
            f"{_PUBLISH}: {given} stands for all addresses of a machine; no client finds the server there. Publish the "
            "name or the address of its machine."
        )
    known = _store_of(_PUBLISH, store).compare_set(_KEY.format(part), "", str(given))
    if known != str(given).encode():
        raise ValueError(
            f"{_PUBLISH}: two servers claim part {part}: {known.decode(errors='replace')} was published, now {given}. "
            "Start one server for each part, and start it again at the same address."
        )


def published_addresses(where: str, parts: Iterable[int], timeout: float, store: Any = None) -> dict[int, Address]:
    """Return the addresses that were published for `parts`; wait for them, `timeout` seconds at most.

    Raises:
        TimeoutError: Some were not published; the message names the first.
        ValueError: What was published is no address.
        RuntimeError: There is no store.
    """
    known, ends = _store_of(where, store), time.monotonic() + timeout
    found = {}
    for part in parts:
        key = _KEY.format(part)
        try:
            known.wait([key], datetime.timedelta(seconds=max(ends - time.monotonic(), 0.001)))
        except RuntimeError as error:  # DistStoreError and others, by version of torch
            raise TimeoutError(
                f"{where}: no address of part {part} was published within {timeout:g} s ({shown(str(error))}). Call "
                "datapipes.distributed.publish_address(part, address) for each server, or pass a namebook."
            ) from error
        found[part] = parse_address(where, f"the published address of part {part}", known.get(key).decode())
    return found


def _store_of(where: str, store: Any) -> Any:
    if store is not None:
        return store
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError(f"{where}: this torch has no torch.distributed. Pass a namebook of addresses.")
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return _store_of_torchrun(where, dist)


def _store_of_torchrun(where: str, dist: Any) -> Any:
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise RuntimeError(
            f'{where}: the namebook "torchrun" needs a store: there is no process group, and {missing[0]} is not set. '
            "Start with torchrun, or call torch.distributed.init_process_group, or pass a namebook of addresses."
        )
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise RuntimeError(
            f"{where}: here rank 0 hosts the store, from init_process_group on. Call "
            "torch.distributed.init_process_group first."
        )
    host, port = (os.environ[name] for name in _VARIABLES)
    check_int(where, "MASTER_PORT", int(port) if port.isdigit() else -1, 1, 65535)
    timeout = datetime.timedelta(seconds=_STORE_S)
    store = dist.TCPStore(host, int(port), None, False, timeout=timeout, wait_for_workers=False)
    # After a restart of the ranks, what was published before no longer counts.
    return dist.PrefixStore(f"datapipes/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
