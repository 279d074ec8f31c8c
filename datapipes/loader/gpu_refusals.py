"""Plans that cannot work, or do what was asked: stages that find ids in the wrong memory, options without effect."""

from __future__ import annotations

from datapipes.device.gather import has_triton
from datapipes.device.uva_threads import MAX_UVA_THREADS
from datapipes.features import FeatureFetcher
from datapipes.loader.graphs import Graph, gpus_of


def unused_max_uva_threads(graph: Graph, given: int) -> ValueError:
    """Return the error for `max_uva_threads` in a plan where no stage reads host memory from a GPU."""
    return ValueError(
        f"data_loader: max_uva_threads is {given}, but no stage of this chain reads host memory from a GPU; allowed: "
        f"{MAX_UVA_THREADS}. Leave it out{_what_would_use_it(graph)}."
    )


def _what_would_use_it(graph: Graph) -> str:
    gpus = gpus_of(graph)
    fetches = [stage for stage in graph.find(FeatureFetcher) if not stage.asynchronous]
    if fetches and not gpus:
        return ", or put copy_to('cuda') before fetch_feature and pin the features"
    reads = [(stage.reads_on(gpu).values(), stage.reads_by_uva(gpu)) for stage in fetches for gpu in gpus]
    if any(all(of_each) and by_uva for of_each, by_uva in reads):
        if not has_triton():
            return ", or install triton, so that GPUs read the page-locked features: pip install datapipes[gpu]"
        return ", or put fetch_feature behind copy_to: its features are page-locked, but are read on the CPU"
    return ", or pin the features" if any(None in of_each for of_each, _ in reads) else ""
