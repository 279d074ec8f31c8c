"""The logger of the package, and where in the user's code a warning belongs."""

import logging
import sys
from types import FrameType

logger = logging.getLogger("datapipes")

_INSIDE = ("datapipes", "torch", "torch_geometric")  # datapipes.pyg derives classes from the other two


def users_frame() -> tuple[int, FrameType]:
    """Return (level, frame) of the nearest calling frame outside this package, torch and PyG: the user's code.

    `level` is the `stacklevel` with which a `warnings.warn` in the caller names that frame.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level, frame
