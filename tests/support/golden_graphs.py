"""The graphs and seeds of the golden digests, and the fields of their messages that all samplers set alike.

All numbers come from plain arithmetic: no random generator is used, since the stream of a generator may change. Every
golden digest rests on this module, so what it returns changes only together with STREAM_VERSION.
"""

from typing import Any

import numpy as np
import torch
import twin

SEED, EPOCH, INDEX = 2026, 3, 2


def key_of_hop(hop: int, ordinal: int = 0) -> int:
    """The key of a hop of the sampler behind the ItemSampler; `ordinal` is the number of the edge type."""
    return twin.hop_key(SEED, EPOCH, INDEX, 1, hop, ordinal)


def step_fields() -> dict[str, np.ndarray]:
    """The epoch and the index of a minibatch."""
    return {"epoch": np.array(EPOCH), "index": np.array(INDEX)}


def block_fields(
    h: int, block: twin.Hop, ids: Any = np.int64, ending: str = "", *, with_edge_ids: bool = True
) -> dict[str, np.ndarray]:
    """The fields of the twin's block of hop h; `ending` is "" or "." and the key of an edge type."""
    fields = {
        f"hop{h}.indptr{ending}": np.array(block.indptr, dtype=np.int64),
        f"hop{h}.indices{ending}": np.array(block.indices, dtype=ids),
        f"hop{h}.num_src{ending}": np.array(block.num_src),
    }
    if with_edge_ids:
        fields[f"hop{h}.edge_ids{ending}"] = np.array(block.edge_ids, dtype=np.int64)
    return fields


# --- without types

NUM_NODES, NUM_EDGES, NUM_ITEMS, BATCH_SIZE = 97, 1200, 50, 8


def edges() -> tuple[list[int], list[int]]:
    """Sources and destinations, with degrees from 0 to about 60."""
    sources = [(i * i * 31 + i * 7 + 5) % NUM_NODES for i in range(NUM_EDGES)]
    destinations = [(i * 13 % NUM_NODES) * (i * 29 % NUM_NODES) // NUM_NODES for i in range(NUM_EDGES)]
    return sources, destinations


def parallel_edges() -> tuple[list[int], list[int]]:
    """Sources and destinations, with degrees from 0 to about 120 and parallel edges."""
    sources = [(i * 31 + i // 7 * 13 + 5) % NUM_NODES for i in range(NUM_EDGES)]
    destinations = [(i * 37 % NUM_NODES) * (i // 11 % NUM_NODES) // NUM_NODES for i in range(NUM_EDGES)]
    return sources, destinations


def seeds_of(pairs: bool, num_items: int = NUM_ITEMS) -> torch.Tensor:
    ids = torch.arange(num_items) * 17 % NUM_NODES
    return torch.stack((ids, ids * 5 % NUM_NODES), dim=1) if pairs else ids


def repeated_seeds(pairs: bool) -> torch.Tensor:
    """Seeds of which some repeat, also at one time."""
    ids = torch.arange(NUM_ITEMS) % 7 * 5
    return torch.stack((ids, ids * 7 % NUM_NODES), dim=1) if pairs else ids


def places_of_items(
    num_items: int = NUM_ITEMS,
    batch_size: int = BATCH_SIZE,
    weights: list[float] | None = None,
    replacement: bool = False,
) -> list[int]:
    """The places in the item set of the items of minibatch INDEX, in its order."""
    key = twin.hop_key(SEED, EPOCH, 0, 0, 0, 0)
    places = range(INDEX * batch_size, (INDEX + 1) * batch_size)
    if replacement:
        return [twin.drawn_item(num_items, weights, key, place) for place in places]
    if weights is not None:
        return twin.item_order(weights, places.stop, key)[places.start :]
    return [twin.permutation_at(num_items, key, place) for place in places]


# --- with types

TYPED_BATCH_SIZE = 16
NUM_NODES_OF = {"paper": 53, "author": 31, "venue": 0, "a.b:%": 7}  # one type is empty, one name needs escapes
NUM_ITEMS_OF = {"paper": 40, "author": 23}
NUM_LINKS_OF = {("paper", "cites", "paper"): 30, ("author", "writes", "paper"): 25}
EDGE_TYPES = [
    ("author", "writes", "paper"),
    ("author", "reviews", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "rev:writes", "author"),
    ("venue", "hosts", "paper"),
    ("a.b:%", "tags", "paper"),
]
KEYS = {"paper": "paper", "author": "author", "venue": "venue", "a.b:%": "a%2Eb%3A%25"}
KEYS |= {of: ":".join(KEYS.get(part, part).replace("rev:", "rev%3A") for part in of) for of in EDGE_TYPES}
FANOUTS_BY_TYPE = [
    {("author", "writes", "paper"): 3, ("paper", "cites", "paper"): -1, ("paper", "rev:writes", "author"): 2},
    {("author", "writes", "paper"): 2, ("author", "reviews", "paper"): 4, ("a.b:%", "tags", "paper"): 1},
]


def edges_of(edge_type: tuple[str, str, str]) -> tuple[list[int], list[int]]:
    """Sources and destinations; none where a type is empty."""
    shift = EDGE_TYPES.index(edge_type)
    sources, destinations = NUM_NODES_OF[edge_type[0]], NUM_NODES_OF[edge_type[2]]
    count = 150 + 60 * shift if sources and destinations else 0
    return (
        [(i * i * 31 + i * 7 + 5 + shift) % sources for i in range(count)],
        [(i * (13 + shift) % destinations) * (i * 29 % destinations) // destinations for i in range(count)],
    )


def edge_index_of_types() -> dict[tuple[str, str, str], torch.Tensor]:
    return {of: torch.tensor(edges_of(of), dtype=torch.int64).reshape(2, -1) for of in EDGE_TYPES}


def relations() -> dict[tuple[str, str, str], tuple[list[int], list[int], list[int]]]:
    """The edges of each type by destination, as the twin has them."""
    return {of: twin.coo_to_csc(*edges_of(of), NUM_NODES_OF[of[2]]) for of in EDGE_TYPES}


def items_of(of: Any) -> torch.Tensor:
    """The seeds of a node type, or the pairs of an edge type."""
    if isinstance(of, str):
        return torch.arange(NUM_ITEMS_OF[of]) * 17 % NUM_NODES_OF[of]
    places = torch.arange(NUM_LINKS_OF[of])
    return torch.stack((places * 11 % NUM_NODES_OF[of[0]], places * 7 % NUM_NODES_OF[of[2]]), dim=1)


def places_of_types(counts: dict[Any, int], **drawn: Any) -> dict[Any, list[int]]:
    """For each type, the places in its item set of the items of minibatch INDEX; `counts` is items by type."""
    numbered = [(of, place) for of in sorted(counts) for place in range(counts[of])]
    visited = [numbered[i] for i in places_of_items(len(numbered), TYPED_BATCH_SIZE, **drawn)]
    return {of: [place for found, place in visited if found == of] for of in counts}


# --- times

TIMED_NODES = ("paper", "author")


def time_of_edge(edge: int) -> int:
    return (edge * 37 + 11) % 50


def time_of_node(v: int) -> int:
    return (v * 19 + 3) % 50


def time_of_item(item: int) -> int:
    """Few different times, so that seeds share some."""
    return item % 2 * 20 + 19
