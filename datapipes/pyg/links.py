"""LinkSeeds: turns links into seeds, and completes the sampler's output, as PyG's `edge_sample` does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from datapipes.base.types import ends_of, values_of

TRIES = 5  # tries to draw a negative that is early enough


class LinkSeeds:
    """Turns links, and negatives that are drawn for them, into the seeds of a sampler: the nodes at both ends.

    Args:
        inputs: an EdgeSamplerInput.
        negatives: a NegativeSampling; None draws none.
        num_nodes: the number of nodes; with types {node type: number}.
        node_time: the times of all nodes; with types {node type: times}. A negative is not later than its link. None:
            no times.
        disjoint: True: each end of a link is a seed with a tree of its own. False: each node is a seed only once, and
            the seeds ascend.
    Attributes:
        seeds: int64 [n]; with types {node type: [n]} for the types of the ends.
        times: the time of each seed, int64, of the same structure as `seeds`; None if the links have no times.
    Raises:
        ValueError: Nodes have times and links have none; links have times, but `disjoint` is False; or links have
            labels, but negatives form triplets.
    """

    def __init__(self, inputs: Any, negatives: Any, num_nodes: Any, node_time: Any, disjoint: bool) -> None:
        self._inputs, self._is_triplet = inputs, negatives is not None and negatives.is_triplet()
        types = src_type, dst_type = ends_of(inputs.input_type)
        src, dst, self._label = inputs.row, inputs.col, inputs.label
        src_times = dst_times = inputs.time
        self._num_links = len(src)
        if inputs.time is not None and not disjoint:
            raise ValueError(
                "NeighborSampler: the links have times, but disjoint is False: a node would be a seed once, with one "
                "time. Pass disjoint=True."
            )
        if self._is_triplet and inputs.label is not None:
            raise ValueError(
                "NeighborSampler: the links have labels, and triplets have none: a positive stands before its "
                "negatives. Leave labels out, or draw binary negatives."
            )
        if negatives is not None:
            drawn = _Drawn(negatives, self._num_links, inputs.time)
            of_src, of_dst = ((values_of(num_nodes, end), values_of(node_time, end)) for end in types)
            if not self._is_triplet:
                src = torch.cat((src, drawn.draw("src", *of_src)))
                ones = torch.ones(self._num_links) if self._label is None else self._label
                self._label = torch.cat((ones, ones.new_zeros((drawn.count, *ones.shape[1:]))))
            dst = torch.cat((dst, drawn.draw("dst", *of_dst)))
            if inputs.time is not None:
                dst_times = inputs.time.repeat(1 + drawn.rounds)[: len(dst)]
                src_times = src_times if self._is_triplet else dst_times
        self._src_times, self._disjoint = src_times, disjoint
        self._link_of = _by_type(types, *(torch.arange(len(ids)) % max(self._num_links, 1) for ids in (src, dst)))
        seeds = _by_type(types, src, dst)
        places = {node_type: torch.arange(len(ids)) for node_type, ids in seeds.items()}
        if not disjoint:
            for node_type, ids in seeds.items():
                seeds[node_type], places[node_type] = ids.unique(return_inverse=True)
        self._src, self._dst = places[src_type][: len(src)], places[dst_type][len(places[dst_type]) - len(dst) :]
        times = None if inputs.time is None else _by_type(types, src_times, dst_times)
        is_typed = inputs.input_type is not None
        self.seeds: Any = seeds if is_typed else seeds[None]
        self.times: Any = times if is_typed or times is None else times[None]

    def placed(self, out: Any) -> Any:
        """Complete `out`, the sampler's output for these seeds, as PyG's loaders expect it, and return it.

        Positions are positions among the sampled nodes. The metadata become (input_id, positions of sources and
        destinations [2, n], labels, times). For triplets they become (input_id, positions of sources, positions of
        destinations, positions of negatives, times). With `disjoint`, `out.batch` becomes the index of each node's
        link; a negative has the index of its positive.
        """
        if self._disjoint:  # trees are counted over the types in sorted order
            link_of = torch.cat([numbers for _, numbers in sorted(self._link_of.items())])
            is_typed = isinstance(out.batch, dict)
            out.batch = {key: link_of[trees] for key, trees in out.batch.items()} if is_typed else link_of[out.batch]
        if not self._is_triplet:
            places: tuple[Any, ...] = (torch.stack((self._src, self._dst)), self._label)
        else:
            negatives = self._dst[self._num_links :]
            if self._disjoint:  # drawn as the first negative of each link, then the second of each, ...
                negatives = negatives.view(-1, self._num_links).t()
            negatives = negatives.reshape(self._num_links, -1).squeeze(-1)
            places = (self._src, self._dst[: self._num_links], negatives)
        out.metadata = (self._inputs.input_id, *places, self._src_times)
        return out


class _Drawn:
    """Draws nodes as the ends of negatives, for `num_links` links; `times`, if not None, are the times of the links."""

    def __init__(self, negatives: Any, num_links: int, times: Tensor | None) -> None:
        self._negatives, self._times = negatives, times
        self.rounds, self.count = math.ceil(negatives.amount), math.ceil(num_links * negatives.amount)

    def draw(self, end: str, num_nodes: int, node_time: Tensor | None) -> Tensor:
        """Draw nodes for one end of the negatives, `end` "src" or "dst", and return their ids [count].

        With times, a node later than its link is drawn again, up to TRIES times; after that, the earliest node is
        taken.
        """
        if node_time is None:
            drawn: Tensor = self._negatives.sample(self.count, end, num_nodes)
            return drawn
        if self._times is None:
            raise ValueError(
                "NeighborSampler: nodes have times, which bound negatives, but the links have none. Give them times "
                "(edge_label_time)."
            )
        latest = self._times.expand(self.rounds, -1)
        ids: Tensor = self._negatives.sample(latest.numel(), end, num_nodes).view_as(latest)
        is_late = node_time[ids] > latest
        for _ in range(TRIES):
            count = int(is_late.sum())
            if count == 0:
                break
            ids[is_late] = again = self._negatives.sample(count, end, num_nodes)
            is_late[is_late.clone()] = node_time[again] >= latest[is_late]
        ids[is_late] = node_time.argmin()
        return ids.view(-1)[: self.count]


def _by_type(types: tuple[Any, Any], src: Any, dst: Any) -> dict[Any, Any]:
    """Return {node type: values} from the values of sources and of destinations, whose types are `types`. If both types
    are the same, the values of sources come first.
    """
    return {types[0]: torch.cat((src, dst))} if types[0] == types[1] else {types[0]: src, types[1]: dst}
