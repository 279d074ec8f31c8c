# mypy: implicit-reexport
"""All names of torch_geometric that this package uses, documented or not.

Our loaders derive from PyG's, for `isinstance` and PyG's attributes, and replace the iteration. Tests compare our
loaders, and code of PyG that we rewrote (pyg/links.py), with the installed version. So versions without such tests are
refused.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from datapipes.base.errors import needed

WHERE = "datapipes.pyg"
FIRST, BEYOND = (2, 8), (2, 9)  # tested versions: FIRST <= version < BEYOND


def refuse_untested(version: str) -> None:
    """Raise ImportError for an untested version of torch_geometric."""
    if not FIRST <= tuple(map(int, version.split(".")[:2])) < BEYOND:
        raise ImportError(
            f"{WHERE}: found torch_geometric {version}; tested are versions from {FIRST[0]}.{FIRST[1]} to below "
            f"{BEYOND[0]}.{BEYOND[1]}, whose loaders it derives from. Install one of them, or use a chain: see "
            "docs/migrate/pyg.md."
        )


def other_names(module: str, ours: list[str]) -> list[str]:
    """Return the public names of PyG's module `module`, without those in `ours`."""
    return [name for name in importlib.import_module(module).__all__ if name not in ours]


def arguments_of(theirs: type, **more: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that gives a constructor the signature of the PyG class `theirs`, and `more` as keywords.

    The decorated constructor is called with all arguments by keyword, defaults included.
    """
    given = inspect.signature(theirs.__init__)  # type: ignore[misc]  # of a known class
    *own, rest = given.parameters.values()
    further = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=more[name]) for name in more]
    signature = given.replace(parameters=[*own, *further, rest])

    def decorate(constructor: Callable[..., None]) -> Any:
        @functools.wraps(theirs.__init__)  # type: ignore[misc]
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError as error:
                names = ", ".join(parameter.name for parameter in (*own[1:], *further))
                raise TypeError(f"{type(self).__name__}: {error}; allowed are {names}. Correct the call.") from None
            bound.apply_defaults()
            arguments = bound.arguments
            del arguments["self"]
            constructor(self, **arguments.pop(rest.name), **arguments)

        init.__dict__["__signature__"] = signature
        del init.__dict__["__wrapped__"]  # tools would read the defaults of PyG's constructor, which lacks `more`
        init.__doc__ = constructor.__doc__
        return init

    return decorate


def handed_on(module: str, name: str) -> Any:
    """Return the attribute `name` of PyG's module `module`, for our own module that lacks it. Errors are PyG's."""
    return getattr(importlib.import_module(module), name)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
    refuse_untested(needed("torch_geometric", "pyg", WHERE).__version__)
    # ruff: noqa: F401  the other modules import these from here
    from torch_geometric.data import Batch, Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
    from torch_geometric.data.graph_store import EdgeLayout
    from torch_geometric.data.remote_backend_utils import num_nodes as num_nodes_in_stores
    from torch_geometric.distributed import DistLinkNeighborLoader, DistNeighborLoader
    from torch_geometric.distributed.dist_context import DistContext, DistRole
    from torch_geometric.distributed.local_feature_store import LocalTensorAttr
    from torch_geometric.distributed.utils import DistEdgeHeteroSamplerInput
    from torch_geometric.loader import (
        ClusterData,
        ClusterLoader,
        GraphSAINTNodeSampler,
        GraphSAINTRandomWalkSampler,
        LinkLoader,
        LinkNeighborLoader,
        NeighborLoader,
        NodeLoader,
        RandomNodeLoader,
        ShaDowKHopSampler,
    )
    from torch_geometric.loader.cluster import Partition
    from torch_geometric.loader.utils import filter_edge_store_, get_input_nodes, index_select
    from torch_geometric.nn.models import MetaPath2Vec, Node2Vec
    from torch_geometric.sampler import (
        BaseSampler,
        HeteroSamplerOutput,
        NegativeSampling,
        NodeSamplerInput,
        SamplerOutput,
    )
    from torch_geometric.sampler.base import NumNeighbors, SubgraphType
    from torch_geometric.sampler.neighbor_sampler import node_sample
    from torch_geometric.utils.num_nodes import maybe_num_nodes
