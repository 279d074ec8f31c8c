"""Files with a few bytes changed at random, which a reader must refuse, or read as something that is still valid."""

from hypothesis import strategies as st

CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)


def changed(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Return `content` with some bytes replaced; a change is a place, which may lie beyond the end, and a byte."""
    damaged = bytearray(content)
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    return bytes(damaged)
