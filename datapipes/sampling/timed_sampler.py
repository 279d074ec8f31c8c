"""TimedSampler: what temporal samplers share, over a whole graph and over parts: their options, and what names them.

docs/semantics.md, sections 3.3 and 4.6.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from datapipes.base.checks import check_bool, check_choice, check_int, shown
from datapipes.base.codec import join_key
from datapipes.chain.stage_base import Fingerprint
from datapipes.sampling.seed_trees import SeedTrees
from datapipes.sampling.tree_sampler import TreeSampler

__all__: list[str] = []


class TimedSampler(TreeSampler):
    """Base of temporal samplers.

    Attributes:
        replace, node_time_attr, edge_time_attr, strategy, inclusive, time_window, disjoint, frontier: as
            TemporalNeighborSampler has them.
    """

    has_times = True

    def _set_options(
        self,
        *,
        replace: bool,
        node_time_attr: str | None,
        edge_time_attr: str | None,
        strategy: str,
        inclusive: bool,
        time_window: int | None,
        disjoint: bool,
        frontier: str,
    ) -> None:
        """Check the options and keep them.

        Raises:
            TypeError, ValueError: One is not allowed.
        """
        self.replace = check_bool(self.name, "replace", replace)
        self.node_time_attr = _check_attribute(self.name, "node_time_attr", node_time_attr)
        self.edge_time_attr = _check_attribute(self.name, "edge_time_attr", edge_time_attr)
        if node_time_attr is None and edge_time_attr is None:
            raise ValueError(
                f"{self.name}: found neither node_time_attr nor edge_time_attr; at least one must name an attribute of "
                f"the graph. Without times use {'dist_' if self.samples_parts else ''}sample_neighbor."
            )
        self.strategy = check_choice(self.name, "strategy", strategy, ("uniform", "last"))
        if strategy == "last" and replace:
            raise ValueError(
                f"{self.name}: strategy is 'last' and replace is True; the last in-edges are taken once each, so only "
                "'uniform' can draw with replacement. Leave out one of the two."
            )
        self.inclusive = check_bool(self.name, "inclusive", inclusive)
        self.time_window = None if time_window is None else check_int(self.name, "time_window", time_window, 0)
        self.disjoint = check_bool(self.name, "disjoint", disjoint)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))

    @abstractmethod
    def _times_digests(self) -> dict[Any, Any]:
        """Return {edge type that is sampled: digests of its latest and, if it has two, its earliest times; or None}."""

    def _refuse_no_times(self, trees: SeedTrees | None) -> None:
        """Raise ValueError unless the seeds have times."""
        if trees is None or trees.times is None:
            raise ValueError(f"{self.name}: found seeds without times; each needs one. Pass trees that have times.")

    def fingerprint(self) -> Fingerprint:
        read = 1 if self.time_window is None else 2  # without a window the earliest times change no pick
        digests = {of: each and each[:read] for of, each in self._times_digests().items()}
        return {
            **super().fingerprint(),
            "replace": self.replace,
            "frontier": self.frontier,
            "strategy": self.strategy,
            "inclusive": self.inclusive,
            "time_window": self.time_window,
            "disjoint": self.disjoint,
            "times_digest": {join_key(of): each for of, each in digests.items()} if self._has_types else digests[None],
        }

    def describe(self) -> dict[str, Any]:
        given = {
            "replace": self.replace or None,
            "node_time_attr": self.node_time_attr,
            "edge_time_attr": self.edge_time_attr,
            "strategy": self.strategy,
            "inclusive": self.inclusive or None,
            "time_window": self.time_window,
            "disjoint": self.disjoint or None,
            "frontier": self.frontier,
        }
        return {**super().describe(), **{name: value for name, value in given.items() if value is not None}}


def _check_attribute(where: str, argument: str, name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{where}: {argument} must be the name of an attribute, got {shown(name)}. Pass a str.")
    return name
