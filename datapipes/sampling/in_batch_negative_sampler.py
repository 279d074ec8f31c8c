"""InBatchNegativeSampler: the negatives of a pair take their ends from other pairs of its minibatch; docs/semantics.md,
section 4.15, fixes the draws. No graph is needed, and frequent nodes are frequent negatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_choice
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.sampling.negative_sampler import ENDS, NegativeSampler, Wanted
from datapipes.sampling.sampler import line_before
from datapipes.seeds.item_sampler import ItemSampler

__all__ = ["InBatchNegativeSampler"]


@register_stage("sample_in_batch_negative")
class InBatchNegativeSampler(NegativeSampler):
    """Add negatives to the pairs of a minibatch: each keeps one end of its positive and takes the other from another
    pair of the minibatch. Every other pair is equally likely, so a node is drawn as often as it occurs in the pairs.

    A negative may be an edge, or its positive again where two pairs share an end; `sample_uniform_negative` with
    `strict` draws none of these. The draws stay within an edge type.

    Args:
        negative_ratio, form: as for NegativeSampler.
        corrupt: the end that is taken from another pair, "dst" or "src".
    Raises:
        TypeError, ValueError: An argument is not allowed, or `batch_size` is 1; while running, the seeds are no pairs,
            or have labels in the form "pairs". A minibatch with one pair of an edge type, such as the last one of an
            epoch, is no error: the negatives of that pair are the pair itself. `drop_last` avoids it.
    """

    def __init__(self, source: Stage, negative_ratio: float, *, corrupt: str = "dst", form: str = "pairs") -> None:
        check_choice(self.name, "corrupt", corrupt, ("dst", "src"))
        super().__init__(source, negative_ratio, corrupt=corrupt, form=form)
        start = line_before(source)[-1]
        if isinstance(start, ItemSampler) and start.batch_size == 1:
            raise ValueError(
                f"{self.name}: batch_size is 1, but negatives are taken from other pairs of the minibatch. Use a "
                "larger batch_size."
            )

    def _seeds(self, wanted: Wanted, rng: RngKey, edge_type: Any) -> Tensor:
        if type(self).sample is not NegativeSampler.sample:  # a subclass draws by itself
            return super()._seeds(wanted, rng, edge_type)
        pairs, _ = wanted.repeated()
        negatives, others = pairs.clone(), len(wanted.positives) - 1
        if others > 0:
            slots = torch.arange(wanted.first_slot, wanted.first_slot + wanted.number)
            (places,) = _core.draw_negatives(
                rng.hop_key(), slots.numpy(), first_try=0, num_tries=1, ends=[(others, None)]
            )
            rows = torch.from_numpy(places).flatten()
            rows += rows >= wanted.places.positive_of
            column = ENDS[self.corrupt][0]
            negatives[:, column] = wanted.positives[rows, column]
        return self._formed(wanted, pairs, negatives)
