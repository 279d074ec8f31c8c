"""SeedsOfTypes: a loader's seeds of several node types; PyG's NodeSamplerInput has seeds of one type only."""

from __future__ import annotations

from typing import Any

import torch

from datapipes.base.checks import check_within


class SeedsOfTypes:
    """Seeds of several node types. Positions of seeds run over one type after the other, in the order of the dict.

    Args:
        by_type: {node type: NodeSamplerInput}.
    """

    def __init__(self, by_type: dict[str, Any]) -> None:
        self.by_type = by_type

    def __len__(self) -> int:
        return sum(len(inputs.node) for inputs in self.by_type.values())

    def __getitem__(self, index: Any) -> SeedsOfTypes:
        """Return the seeds at the positions `index`. All types are kept, also types without a seed at `index`."""
        index = torch.as_tensor(index, dtype=torch.int64)
        counts_back = (index < 0) & (index >= -len(self))  # negative places count from the end
        index = torch.where(counts_back, index + len(self), index)
        check_within("SeedsOfTypes", "index", index, len(self), "Pass indices into loader.dataset.")
        chosen, begin = {}, 0
        for node_type, inputs in self.by_type.items():
            end = begin + len(inputs.node)
            chosen[node_type] = inputs[index[(index >= begin) & (index < end)] - begin]
            begin = end
        return SeedsOfTypes(chosen)


def inputs_by_type(inputs: Any) -> dict[Any, Any]:
    """Return a loader's seeds as {type: sampler input}. Without types, the type is None."""
    return inputs.by_type if isinstance(inputs, SeedsOfTypes) else {inputs.input_type: inputs}
