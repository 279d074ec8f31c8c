"""pyarrow, where it is installed; nothing imports it before a client or a server is made."""

from __future__ import annotations

from typing import Any

from datapipes.base.errors import needed


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
