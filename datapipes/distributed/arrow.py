"""Import pyarrow only when a client or a server is made, since pyarrow is an optional dependency.

Arrow Flight hangs in a process that was forked from a process with a Flight client or server. So `refuse_forked` raises
an error in such a process.
"""

from __future__ import annotations

from typing import Any

from datapipes.base.errors import needed
from datapipes.processes.unforkable import Unforkable, must_not_be_forked, refuse_if_inherited

_FLIGHT = "Arrow Flight"


def arrow(where: str) -> Any:
    """Import and return the module pyarrow. Raises what `arrow_flight` raises."""
    arrow_flight(where)
    import pyarrow

    return pyarrow


def arrow_flight(where: str) -> Any:
    """Import and return the module pyarrow.flight. `where` is the caller, for error messages.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the message says what to install.
    """
    return needed("pyarrow.flight", "distributed", f"{where}: Arrow Flight, through which machines read parts,")


def note_client(client: Any) -> None:
    """Record that this process must not be forked while `client`, a client of Arrow Flight, exists."""
    has, instead = "is connected to servers (Arrow Flight)", "close the DistGraph, or what else is connected, before"
    must_not_be_forked(client, _FLIGHT, Unforkable(has, instead))


def note_server(server: Any) -> None:
    """Record that this process must not be forked while `server`, a server of Arrow Flight, exists."""
    has = "runs a PartitionServer or a SamplerReceiver (Arrow Flight)"
    must_not_be_forked(server, _FLIGHT, Unforkable(has, "stop it before"))


def refuse_forked(where: str) -> None:
    """Raise RuntimeError if this process was forked from a process that used Flight: Flight would hang here."""
    refuse_if_inherited(where, _FLIGHT, "Arrow Flight, which connects to servers, was used")
