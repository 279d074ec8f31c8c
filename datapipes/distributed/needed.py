"""pyarrow, where it is installed; nothing imports it before a client or a server is made."""

from __future__ import annotations

from typing import Any

from datapipes.base.errors import pip_install


def arrow(where: str) -> Any:
    """Return the module pyarrow; see `arrow_flight`."""
    arrow_flight(where)
    import pyarrow

    return pyarrow


def arrow_flight(where: str) -> Any:
    """Return the module pyarrow.flight.

    Raises:
        ImportError: pyarrow is not installed; the message says what to install.
    """
    try:
        import pyarrow.flight
    except ImportError as error:
        raise ImportError(
            f"{where}: parts of other machines are read through Arrow Flight, but pyarrow cannot be imported "
            f"({error}). Install it: {pip_install('pyarrow', 'distributed')}.",
            name="pyarrow",
        ) from error
    return pyarrow.flight
