"""The random key of a stage at one minibatch: docs/semantics.md, section 1.

Every random choice is a pure function of this key and a node, so there is no generator to hold, advance or share.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

try:
    from datapipes import _core
except ImportError as error:  # this module is the first that needs the core
    raise ImportError(
        f"datapipes was imported from {Path(__file__).parents[1]}, where the compiled core cannot be loaded: {error}. "
        "Source without a core hides an installed package: leave its folder, or install it by pip install -e . "
        "(`datapipes doctor` says more)."
    ) from error
from datapipes.base.checks import check_int

__all__ = ["STREAM_VERSION", "RngKey"]

#: The version of the rules in docs/semantics.md; a change of any minibatch raises it.
STREAM_VERSION: int = _core.STREAM_VERSION
MAX_SEED = 2**64 - 1
MAX_EPOCH = 2**32 - 1


@dataclass(slots=True, unsafe_hash=True)  # not frozen: a key is built in a third of the time
class RngKey:
    """The random key of a stage at one minibatch. A random choice of the stage depends on this key and a node only."""

    seed: int
    epoch: int
    index: int
    stage: int

    def hop_key(self, hop: int = 0, etype: int = 0) -> int:
        """Return the 64-bit key of a hop's draws.

        Args:
            hop: index of the hop, below 2**8; hop 0 is next to the seeds.
            etype: position of the edge type among all edge types (src, rel, dst), sorted as tuples; below 2**16.
        Raises:
            ValueError: An argument or field is too large for the key; the message names it.
        """
        return _core.hop_key(self.seed, self.epoch, self.index, self.stage, hop, etype)

    def generator(self, hop: int = 0, etype: int = 0, device: str | torch.device = "cpu") -> torch.Generator:
        """Return a new generator of torch that draws on `device` and is seeded with `hop_key(hop, etype)`."""
        return torch.Generator(device).manual_seed(self.hop_key(hop, etype))


def check_seed(where: str, seed: object) -> int:
    """Return `seed` if it is an int in [0, 2**64), else raise."""
    return check_int(where, "seed", seed, 0, MAX_SEED)


def check_epoch(where: str, epoch: object) -> int:
    """Return `epoch` if it is an int in [0, 2**32), else raise."""
    return check_int(where, "epoch", epoch, 0, MAX_EPOCH)
