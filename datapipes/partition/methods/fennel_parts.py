"""The method "fennel": a stream over the nodes, for graphs that METIS cannot hold."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes import _core
from datapipes.base.progress import Progress
from datapipes.graph.graph import Graph
from datapipes.partition.methods.all_nodes import AllNodes
from datapipes.partition.methods.even_parts import even_at_last, even_parts
from datapipes.partition.methods.random_parts import STAGE

MOST_PASSES = 10
FEW = 1000  # a pass that moves fewer than one node of so many is the last
BLOCKS_AT_ONCE = 256  # up to 2^18 nodes; Ctrl-C is looked at in between
SAID_EVERY_S = 0.25


def fennel_parts(graph: Graph, nodes: AllNodes, num_parts: int, *, rng_seed: int, progress: Progress) -> NDArray[Any]:
    """Return the part of each node by its number, uint8 for up to 255 parts, else int16.

    A node goes to the part that has most of its neighbors, less a penalty for the weight that the part has already.
    That is Fennel with gamma = 2. Up to MOST_PASSES passes go over all nodes; each knows the parts of the pass before,
    and the last is the first that moves fewer than one node in FEW. csrc/partition/fennel.h has all rules. The rows of
    the graph are read in stretches of up to 1,024 nodes in a random order, so a mapped graph may be larger than memory;
    each pass reads all of it.

    No part weighs more than 1.03 of the mean, and more than the mean and one node together. Where one measure of the
    weight is uneven all the same, `even_parts` evens it. Memory: 5 bytes a node for up to 255 parts, else 8; one more
    where a mask of training nodes is not contiguous; where parts are evened, what that takes, and 1 or 2 bytes a node.
    O(edges + nodes log num_parts) a pass.

    Sources: Tsourakakis, Gkantsidis, Radunovic, Vojnovic: FENNEL: streaming graph partitioning for massive scale
    graphs, WSDM 2014. Nishimura, Ugander: Restreaming graph partitioning, KDD 2013. Boyer, Moore: MJRTY, 1991 (how
    neighbors along out-edges are counted, of which no list is stored).

    Raises:
        ValueError: The graph is corrupt.
    """
    kernel = _core.Fennel(
        graph.topology(),
        num_parts=num_parts,
        key=_core.hop_key(rng_seed, 0, 0, STAGE, 2, 0),
        **nodes.combined._asdict(),
        training=nodes.training_bytes(),
    )
    said = -math.inf
    for turn in range(MOST_PASSES):
        for first in range(0, kernel.num_blocks, BLOCKS_AT_ONCE):
            if time.monotonic() > said + SAID_EVERY_S:
                said = time.monotonic()
                progress(f"stream the nodes, pass {turn + 1} of up to {MOST_PASSES}", first, kernel.num_blocks)
            kernel.visit(first, min(BLOCKS_AT_ONCE, kernel.num_blocks - first))
        if kernel.end_pass() * FEW < nodes.total:
            break
    found = kernel.parts()
    del kernel  # and its memory
    parts = found if found.dtype == np.uint8 else found.view(np.int16)
    even_at_last(graph, nodes, parts, num_parts, even_parts(graph, nodes, parts, num_parts))
    return parts
