"""Import pyarrow where it is installed, and only when a client or a server is made.

A process forked from one with an Arrow Flight client or server would wait for ever, so it gets an error instead.
"""

from __future__ import annotations

from typing import Any

from datapipes.base.errors import needed
from datapipes.processes.unforkable import Unforkable, must_not_be_forked, refuse_if_inherited

_FLIGHT = "Arrow Flight"


def arrow(where: str) -> Any:
    """Return the module pyarrow; see `arrow_flight`."""
    arrow_flight(where)
    import pyarrow

    return pyarrow


def arrow_flight(where: str) -> Any:
    """Return the module pyarrow.flight.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the message says what to install.
    """
    return needed("pyarrow.flight", "distributed", f"{where}: Arrow Flight, through which machines read parts,")


def note_client(client: Any) -> None:
    """Record, for as long as `client` exists, that this process must not be forked: it has a client of Flight."""
    has, instead = "is connected to servers (Arrow Flight)", "close the DistGraph, or what else is connected, before"
    must_not_be_forked(client, _FLIGHT, Unforkable(has, instead))


def note_server(server: Any) -> None:
    """Record, for as long as `server` exists, that this process must not be forked: it has a server of Flight."""
    has = "runs a PartitionServer or a SamplerReceiver (Arrow Flight)"
    must_not_be_forked(server, _FLIGHT, Unforkable(has, "stop it before"))


def refuse_forked(where: str) -> None:
    """Raise RuntimeError if this process was forked from one that had used Flight: it would wait for ever."""
    refuse_if_inherited(where, _FLIGHT, "Arrow Flight, which connects to servers, was used")
