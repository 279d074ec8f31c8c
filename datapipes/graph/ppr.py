"""PprPlan: how a stage computes personalised PageRank in all minibatches. docs/semantics.md, section 4.12."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.threads import num_threads


@dataclass(frozen=True, eq=False)
class PprPlan:
    """The nodes with the largest personalised PageRank of each seed: ids [n, count] of the graph's `index_dtype`, and
    scores, float32 [n, count]; -1 and 0 where fewer nodes have a score.

    Attributes:
        name: the stage's name, for errors.
        graph: the Graph, without types.
        count, alpha, eps: see PprSampler.
    """

    name: str
    graph: Any
    count: int
    alpha: float
    eps: float

    def refuse_other(self, graph: Any) -> None:
        """Raise ValueError if this is the plan of another graph."""
        if self.graph is not graph:
            raise ValueError(f"{self.name}: found the plan of another graph. Make a PprPlan for this one.")

    @property
    def options(self) -> dict[str, int]:
        """The arguments of the C++ core, as integers."""
        return {"keep": int(self.alpha * 2**32), "eps": int(self.eps * 2**62), "count": self.count}

    def drawn(self, topology: _core.Topology, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor]:
        """Return neighbors and scores over a whole graph, by one call of the C++ core."""
        nodes = seeds.numpy().astype(np.int64, copy=False)
        ids, masses, _ = _core.ppr(topology, nodes, **self.options, num_threads=num_threads(), op=self.name)
        return self.scored(ids, masses)

    def scored(self, ids: NDArray[Any], masses: NDArray[np.uint64]) -> tuple[Tensor, Tensor]:
        """Return a result of the C++ core as tensors; masses are in units of 2^-62."""
        scores = (masses.astype(np.float64) * 2.0**-62).astype(np.float32)
        return torch.from_numpy(ids).view(-1, self.count), torch.from_numpy(scores).view(-1, self.count)
