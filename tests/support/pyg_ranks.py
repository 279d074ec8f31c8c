"""Ranks that load with datapipes.pyg.distributed: what each of them is ordered to do, and what one machine does."""

import functools
import socket
import threading
from collections.abc import Callable
from typing import Any

import torch
from pyg_cases import assert_same, random_data, random_hetero

import datapipes as dp
from datapipes.partition.partitioner import Partitioner
from datapipes.pyg.distributed import (
    DistContext,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LocalFeatureStore,
    LocalGraphStore,
)
from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader

TIMEOUT_S = 30
BOUND_S = 60


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@functools.cache
def port_of_all() -> int:
    """Where the ranks of all tests of this process meet that need no store of their own.

    For each connection to its store torch asks twice for the name of the other end, which a name server that loses
    questions answers after 5 s.
    """
    return free_port()


def plain_data(seed: int, num_nodes: int = 40, num_edges: int = 160) -> Any:
    """Random Data of what parts hold: tensors with a row for each node or edge."""
    data = random_data(seed, num_nodes, num_edges)
    for name in ("table", "num_classes", "name", "whole"):
        del data[name]
    return data


def typed_data(seed: int) -> Any:
    data = random_hetero(seed)
    del data["venue"]
    return data


def cut(root: Any, data: Any, num_parts: int, layout: str = "pyg", **options: Any) -> None:
    """Partition data at random."""
    Partitioner(data, num_parts, root, method="random", layouts=(layout,), **options).generate_partition()


def context_of(rank: int, size: int, group: str = "test") -> DistContext:
    return DistContext(rank, rank, size, size, f"{group} of {size}")


def stores(root: Any, part: int) -> tuple[LocalFeatureStore, LocalGraphStore]:
    return LocalFeatureStore.from_partition(root, part), LocalGraphStore.from_partition(root, part)


class OfRank:
    """Makes a loader of one machine take the minibatches of a rank."""

    rank, size = 0, 1

    def _seeds(self) -> Any:
        return dp.DistributedItemSampler(
            dp.ItemSet(len(self.dataset)),
            self.batch_size,
            rank=self.rank,
            world_size=self.size,
            shuffle=isinstance(self.sampler, torch.utils.data.RandomSampler),
            drop_last=self.drop_last,
            local_items=True,
            seed=self.seed,
            num_steps=len(self.batch_sampler),
        )


class NodesOfRank(OfRank, NeighborLoader):
    pass


class LinksOfRank(OfRank, LinkNeighborLoader):
    pass


def nodes_of(data: Any, rank: int, size: int) -> Any:
    """Return the seeds of a rank: some nodes of all parts, and of another number on each rank."""
    of = "paper" if hasattr(data, "node_types") else None
    count = data["paper"].num_nodes if of else data.num_nodes
    ids = torch.arange(count).roll(3)[rank::size].flip(0)[: 13 - 4 * rank]
    return ids if of is None else (of, ids)


def links_of(data: Any, rank: int, size: int, edge_type: Any) -> Any:
    columns = data.edge_index if edge_type is None else data[edge_type].edge_index
    columns = columns[:, rank::size][:, : 13 - 4 * rank]
    return (edge_type, columns)


def compare(rank: int, size: int, root: Any, data: Any, port: int, cases: Any) -> int:
    """Load in this rank by each of some cases, and compare with one machine; return how many batches were equal.

    Rank r has the part size - 1 - r.
    """
    count = 0
    for is_link, given, loading in cases:
        count += _compare(rank, size, data, stores(root, size - 1 - rank), port, is_link, given, loading)
    return count


def _compare(rank: int, size: int, data: Any, pair: Any, port: int, is_link: bool, given: Any, loading: Any) -> int:
    given, options = dict(given), {"batch_size": 5, "shuffle": True, "seed": 7, **loading}
    edge_type = given.pop("edge_type", None)
    if is_link:
        seeds = links_of(data, rank, size, edge_type)
        given["edge_label_index"] = seeds
        if "time_attr" in given:
            given["edge_label_time"] = torch.arange(seeds[1].shape[1]) % 31
        if given.pop("labels", False):
            given["edge_label"] = torch.arange(seeds[1].shape[1]) % 3
        kind, one_machine = DistLinkNeighborLoader, LinksOfRank
    else:
        seeds = nodes_of(data, rank, size)
        given["input_nodes"] = seeds
        if given.pop("times", False):
            given["input_time"] = torch.arange(len(seeds if isinstance(seeds, torch.Tensor) else seeds[1])) % 31
        kind, one_machine = DistNeighborLoader, NodesOfRank
    loader = kind(
        pair,
        given["num_neighbors"],
        "127.0.0.1",
        port,
        context_of(rank, size),
        rpc_timeout=TIMEOUT_S,
        **{name: value for name, value in given.items() if name != "num_neighbors"},
        **options,
    )
    seeds = {"edge_label_index": seeds[1]} if is_link and edge_type is None else {}
    alone = {name: value for name, value in options.items() if name in ("batch_size", "shuffle", "seed", "drop_last")}
    expected = one_machine(data, **{**given, **seeds}, **alone)
    expected.rank, expected.size = rank, size
    count = 0
    for _ in range(2 if rank == 0 else 1):  # epochs; ranks need not have equally many
        found = [*loader]
        assert len(found) == len(loader) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
            count += 1
    loader.close()
    return count


def in_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call work(rank, size, *arguments) in threads, the ranks; return what they return or raise."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank, size, *arguments)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for rank, thread in enumerate(threads):
        thread.join(BOUND_S)
        assert not thread.is_alive(), f"rank {rank} is still at work after {BOUND_S} s"
    return found


def answers(found: list[Any]) -> list[Any]:
    """Return what ranks returned, or raise the first error."""
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found
