"""DistContext: rank and group of a process that samples; and PyG's small classes around it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from datapipes.base.checks import check_int, shown

__all__ = ["DistContext", "DistEdgeHeteroSamplerInput", "DistRole"]


class DistRole(Enum):
    """The role of a process; there is only one."""

    WORKER = 1


@dataclass
class DistContext:
    """The rank of this process in a group of processes that sample together; each rank has one part.

    Attributes:
        rank: the number of this process, in [0, world_size).
        global_rank, global_world_size: equal to rank and world_size; PyG would count other roles, which do not exist.
        world_size: number of processes, which is the number of parts.
        group_name: the name of the group, equal on all its ranks; different groups do not meet.
        role: the only role.
    """

    rank: int
    global_rank: int
    world_size: int
    global_world_size: int
    group_name: str
    role: DistRole = DistRole.WORKER

    @property
    def worker_name(self) -> str:
        """The name of this process in its group."""
        return f"{self.group_name}-{self.rank}"


@dataclass
class DistEdgeHeteroSamplerInput:
    """Seeds of two node types for `DistNeighborSampler.node_sample`: the ends of links.

    Attributes:
        input_id: int64 [n], the positions of these links among all links; or None.
        node_dict: {node type: int64 [n]}.
        time_dict: {node type: int64 [n]}, the times of the seeds; or None.
        input_type: the edge type of the links.
    """

    input_id: Tensor | None
    node_dict: dict[str, Tensor]
    time_dict: dict[str, Tensor] | None = None
    input_type: tuple[str, str, str] | None = None


def check_context(where: str, context: Any, num_parts: int | None = None) -> DistContext:
    """Return `context`, checked; with `num_parts`, its world_size must be that number.

    Raises:
        TypeError, ValueError: A value is not allowed; the message says what was found.
    """
    names = ("rank", "world_size", "group_name")
    if not all(hasattr(context, name) for name in names):
        raise TypeError(
            f"{where}: current_ctx must be a DistContext, got {shown(context)}. Make one: DistContext of "
            "datapipes.pyg.distributed or torch_geometric.distributed."
        )
    size = check_int(where, "world_size of current_ctx", context.world_size, 1)
    check_int(where, "rank of current_ctx", context.rank, 0, size - 1)
    if not isinstance(context.group_name, str):
        raise TypeError(f"{where}: group_name of current_ctx must be text, got {shown(context.group_name)}.")
    if num_parts is not None and size != num_parts:
        raise ValueError(
            f"{where}: current_ctx has world_size {size}, but the graph is in {num_parts} parts; each rank has one "
            "part. Start as many ranks as there are parts, or partition the graph again."
        )
    return context  # type: ignore[no-any-return]
