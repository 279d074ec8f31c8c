"""Refuse plans that cannot work, such as stages with ids in the wrong memory, and name a remedy."""

from __future__ import annotations

from typing import Any

import torch

from datapipes.base.errors import pip_install
from datapipes.chain.stage import Stage, StreamStage
from datapipes.device import CopyTo
from datapipes.device.gather import has_triton
from datapipes.features import FeatureFetcher
from datapipes.features.feature_store import feature_text
from datapipes.features.fetch_for_copy import Decode, FetchForCopy, lies_on_gpu
from datapipes.loader.graphs import Graph, gpus_of, planned_elsewhere
from datapipes.loader.options import LoaderOptions
from datapipes.sampling import Sampler
from datapipes.seeds import ItemSampler

_HOST = torch.device("cpu")


def refuse_ids_elsewhere(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` unchanged, after a check of where ids lie. Stages behind a user's stage are not checked.

    Raises:
        ValueError: A sampler's seeds lie on a GPU; or rows on a GPU are fetched with ids in host memory.
    """
    elsewhere = planned_elsewhere(graph)
    for stage in graph:
        if id(stage) in elsewhere:
            continue
        if isinstance(stage, Sampler):
            _refuse_seeds_on_gpu(stage)
        if isinstance(stage, FeatureFetcher):
            _refuse_rows_on_gpu(stage, options)
    return graph


def _refuse_seeds_on_gpu(sampler: Sampler) -> None:
    """Raise ValueError if the seeds of `sampler` lie on a GPU; a sampler with its own transform may take them there."""
    methods, place = ("transform", "seeds_of", "_checked_seeds"), place_of_ids(sampler)
    has_own = any(not _is_ours(getattr(type(sampler), name)) for name in methods)
    if place is not None and place.type == "cuda" and not has_own:
        raise ValueError(
            f"data_loader: {sampler.name} stands behind copy_to({str(place)!r}), but samplers take seeds in host "
            f"memory; fetch_feature and other stages of your own are allowed there. Put copy_to behind {sampler.name}."
        )


def _refuse_rows_on_gpu(fetch: FeatureFetcher, options: LoaderOptions) -> None:
    """Raise ValueError if `fetch` reads rows on a GPU with ids in host memory, unless the store has its own way."""
    if place_of_ids(fetch) != _HOST or not (isinstance(fetch, FetchForCopy) or FetchForCopy.can_replace(fetch)):
        return
    for key in fetch.feature_keys:
        feature = fetch.feature_store[key]
        if lies_on_gpu(feature):
            device = str(feature.tensor.device)
            raise ValueError(
                f"data_loader: fetch_feature takes ids in host memory here, but the rows of {feature_text(*key)} lie "
                f"on {device}; only ids on {device} are allowed for them. "
                f"{_how_to_read_there(fetch, device, options)}, or keep the rows in host memory."
            )


def _how_to_read_there(fetch: FeatureFetcher, device: str, options: LoaderOptions) -> str:
    for key, how in fetch.reads_on(torch.device(device)).items():
        if how is None:
            return (
                f"The {feature_text(*key)} is not read with such ids: pin it, or use two fetches, with "
                f"copy_to({device!r}) between"
            )
    in_processes = options.num_workers > 0 and options.worker_method == "process"
    at_default = ", and leave cut at its default" if in_processes and options.cut != LoaderOptions.cut else ""
    return f"Put copy_to({device!r}) before fetch_feature{at_default}"


def place_of_ids(stage: Stage) -> torch.device | None:
    """Return the device of a stage's ids; None if a user's stage may have moved them."""
    while len(stage.sources) == 1:
        stage = stage.source
        if not _is_ours(type(stage)):
            return None
        if isinstance(stage, CopyTo):
            return stage.device
        if isinstance(stage, (Sampler, ItemSampler)):
            return _HOST
        if not isinstance(stage, (FeatureFetcher, StreamStage, Decode)):
            return None
    return None


def _is_ours(defined: Any) -> bool:
    """Return whether a class or a method belongs to the package, not to the user."""
    return str(defined.__module__).startswith("datapipes.")


def what_would_use_uva(graph: Graph) -> str:
    """Return how some stage would read host memory from a GPU, as the end of a sentence; "" if that is not known."""
    gpus = gpus_of(graph)
    fetches = [stage for stage in graph.find(FeatureFetcher) if not stage.asynchronous]
    if fetches and not gpus:
        return ", or put copy_to('cuda') before fetch_feature and pin the features"
    reads = [(stage.reads_on(gpu).values(), stage._reads_by_uva(gpu)) for stage in fetches for gpu in gpus]
    if any(all(of_each) and by_uva for of_each, by_uva in reads):
        if not has_triton():
            how = pip_install("triton", "gpu")
            return f", or install triton, so that GPUs read the page-locked features: {how}"
        return ", or put fetch_feature behind copy_to: its features are page-locked, but are read on the CPU"
    return ", or pin the features" if any(None in of_each for of_each, _ in reads) else ""
