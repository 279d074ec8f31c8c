"""The attributes of loaders: which may be set once a loader is built, and which its constructor alone reads."""

from __future__ import annotations

from typing import Any

from datapipes.base.checks import names_in_code

# Arguments that only the constructors of loaders read, theirs and torch's; torch refuses others itself.
_READ_ONCE = {
    *("input_nodes", "input_time", "input_id", "edge_label_index", "edge_label", "edge_label_time"),
    *("num_neighbors", "replace", "subgraph_type", "directed", "disjoint", "temporal_strategy"),
    *("time_attr", "weight_attr", "is_sorted", "neighbor_sampler", "neg_sampling_ratio"),
    *("seed", "shuffle", "generator", "collate_fn", "pin_memory_device"),
}


class _OfView:
    """An attribute of a loader that lives in its view: the next batch sees a change, in workers the next loop."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, loader: Any, cls: type | None = None) -> Any:
        return self if loader is None else getattr(loader.view, self._name)

    def __set__(self, loader: Any, value: Any) -> None:
        setattr(loader.view, self._name, value)
        loader.view.forget_rows()


class Attributes:
    """The attributes of loaders that may be set once they are built, and the refusal of others."""

    data = _OfView("data")
    input_data = _OfView("input_data")
    neg_sampling = _OfView("neg_sampling")
    transform = _OfView("transform")
    transform_sampler_output = _OfView("transform_sampler_output")
    custom_cls = _OfView("custom_cls")
    node_sampler = _OfView("sampler")
    link_sampler = _OfView("sampler")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. A class of the user's that derives from the loader may set any in its methods.

        Raises:
            ValueError: Only the constructor has read it, so nothing would change.
        """
        own = (cls for cls in type(self).__mro__ if not cls.__module__.startswith(("datapipes.", "torch")))
        if name in _READ_ONCE and getattr(self, "_DataLoader__initialized", False) and name not in names_in_code(own):
            kind = type(self).__name__
            raise ValueError(f"{kind}: {name} is fixed since the loader was built. Build a new one: {kind}(...).")
        super().__setattr__(name, value)
