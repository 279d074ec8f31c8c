"""CopyTo: copies all tensors of a minibatch to a device."""

from __future__ import annotations

from typing import Any

import torch

from datapipes.base.checks import check_bool, shown
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.minibatch import MiniBatch

__all__ = ["CopyTo"]


@register_stage("copy_to")
class CopyTo(MiniBatchTransformer):
    """Copy every tensor of the minibatch to `device`; tensors that are there already are shared.

    Args:
        device: "cpu", "cuda", "cuda:1" or a torch.device.
        non_blocking: do not wait for copies from page-locked memory to a GPU. They run on the current stream, so work
            queued on that stream sees the copied values.
    Raises:
        ValueError: The device does not exist here; checked when the chain is built.
    """

    draws = False

    def __init__(self, source: Stage, device: str | torch.device, *, non_blocking: bool = True) -> None:
        super().__init__(source)
        self.device = _check_device(device)
        self.non_blocking = check_bool("copy_to", "non_blocking", non_blocking)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        return minibatch.to(self.device, self.non_blocking)

    def describe(self) -> dict[str, Any]:
        return {"device": str(self.device)}


def _check_device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"copy_to: device must be a device such as 'cpu' or 'cuda:0', got {shown(device)}. Name one."
        ) from error
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ValueError(
                f"copy_to: device is {str(wanted)!r}, but this machine offers no CUDA device to torch "
                f"{torch.__version__}; allowed here: 'cpu'. Use copy_to('cpu'), or install a CUDA build of torch."
            )
        if wanted.index is not None and wanted.index >= count:
            raise ValueError(
                f"copy_to: device is {str(wanted)!r}, allowed are cuda:0 .. cuda:{count - 1}. Choose one of these."
            )
    elif wanted.type not in ("cpu", "meta"):
        module = getattr(torch, wanted.type, None)
        if module is None or not getattr(module, "is_available", lambda: False)():
            raise ValueError(f"copy_to: device is {str(wanted)!r}, which is not available here. Use 'cpu' or 'cuda'.")
    return wanted
