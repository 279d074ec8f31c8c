"""The padding of a minibatch entry by entry, as docs/semantics.md, section 5.1, has it; and models over its blocks."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import datapipes as dp


def by_type(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {None: value}


def ends_of(edge_type: Any) -> tuple[Any, Any]:
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])


def number(counts: Any, of: Any) -> int:
    return counts[of] if isinstance(counts, dict) else counts


def layers_of(minibatch: dp.MiniBatch, bucket: dict[str, Any], negative_end: int = 2) -> dict[Any, list[int]]:
    """{node type: how many nodes each of its layers has}."""
    hops, layers = [by_type(hop) for hop in reversed(minibatch.blocks)], {}
    for kind, ids in by_type(minibatch.input_nodes).items():
        leaving = [edge_type for edge_type in hops[0] if ends_of(edge_type)[0] == kind]
        arriving = [edge_type for edge_type in hops[0] if ends_of(edge_type)[1] == kind]
        if len(bucket["nodes"]) == 1 or not leaving:
            layers[kind] = [len(ids)]
            continue
        reached = [hop[leaving[0]].num_src for hop in hops]
        first = hops[0][arriving[0]].num_dst if arriving else len(seeds_of(minibatch, kind, negative_end))
        layers[kind] = [first, *(after - before for before, after in zip([first, *reached], reached, strict=False))]
    return layers


def seeds_of(minibatch: dp.MiniBatch, kind: Any, negative_end: int) -> set[int]:
    """The local ids of the seeds of a node type; `negative_end` is the place of the type of columns 2 and up."""
    found: set[int] = set()
    for of, local in by_type(minibatch.compacted_seeds).items():
        if not isinstance(of, tuple):
            found |= {*local.flatten().tolist()} if of == kind else set()
            continue
        for column in range(local.shape[1]):
            found |= {*local[:, column].tolist()} if of[[0, 2, negative_end][min(column, 2)]] == kind else set()
    return found


def expect_padded(
    before: dp.MiniBatch, after: dp.MiniBatch, bucket: dict[str, Any], times: int = 1, negative_end: int = 2
) -> None:
    """Check that `after` is `before` with padding up to `times` the sizes of a bucket, entry by entry."""
    layers = layers_of(before, bucket, negative_end)
    places, rows_of = {}, {}
    for kind, counts in layers.items():
        ids = by_type(before.input_nodes)[kind]
        expected, places[kind], rows_of[kind] = [], {}, []
        for layer, count in enumerate(counts):
            begin = len(places[kind])
            rows = times * number(bucket["nodes"][layer], kind)
            assert rows > count
            places[kind] |= {begin + i: len(expected) + i for i in range(count)}
            expected += ids[begin : begin + count].tolist() + [-1] * (rows - count)
            rows_of[kind].append(len(expected))
        assert by_type(after.input_nodes)[kind].tolist() == expected
        assert by_type(after.input_nodes)[kind].dtype == ids.dtype
    expect_blocks(before, after, bucket, times, places, rows_of)
    expect_seeds(before, after, bucket, times, places, rows_of, negative_end)


def expect_blocks(before, after, bucket, times, places, rows_of) -> None:
    for hop, (real, padded) in enumerate(zip(reversed(before.blocks), reversed(after.blocks), strict=True)):
        assert [*by_type(padded)] == [*by_type(real)]
        for of, block in by_type(real).items():
            found, (src, dst) = by_type(padded)[of], ends_of(of)
            rows = rows_of[dst][min(hop, len(rows_of[dst]) - 1)]
            num_src = rows_of[src][min(hop + 1, len(rows_of[src]) - 1)]
            num_edges = times * number(bucket["edges"][hop], of)
            assert (found.num_dst, found.num_src, found.num_edges) == (rows, num_src, num_edges)
            assert found.indices.dtype == block.indices.dtype
            columns: list[list[tuple[int, int | None]]] = [[] for _ in range(rows)]
            for column in range(block.num_dst):
                for edge in range(int(block.indptr[column]), int(block.indptr[column + 1])):
                    edge_id = None if block.edge_ids is None else int(block.edge_ids[edge])
                    columns[places[dst][column]].append((places[src][int(block.indices[edge])], edge_id))
            assert columns[-1] == []
            edge_id = None if block.edge_ids is None else -1
            columns[-1] = [(num_src - 1, edge_id)] * (num_edges - block.num_edges)
            ids = [None] * num_edges if found.edge_ids is None else found.edge_ids.tolist()
            edges = list(zip(found.indices.tolist(), ids, strict=True))
            offsets = found.indptr.tolist()
            assert offsets[0] == 0
            assert [edges[begin:end] for begin, end in itertools.pairwise(offsets)] == columns


def expect_seeds(before, after, bucket, times, places, rows_of, negative_end) -> None:
    starts, begin, padded_begin = {}, 0, 0
    for of, seeds in by_type(before.seeds).items():
        count, rows = len(seeds), times * number(bucket["seeds"], of)
        assert rows > count
        starts |= {begin + i: padded_begin + i for i in range(count)}
        begin, padded_begin = begin + count, padded_begin + rows
        fills = {"seeds": -1, "labels": -100, "indexes": -1, "timestamps": 0}
        fields = {name: (getattr(before, name), getattr(after, name), fill) for name, fill in fills.items()}
        fields |= {name: (before.extra[name], after.extra[name], -1) for name in before.extra}
        assert {*after.extra} == {*before.extra}
        for real, padded, fill in fields.values():
            if real is None:
                assert padded is None
                continue
            real, padded = by_type(real)[of], by_type(padded)[of]
            assert padded.dtype == real.dtype
            assert padded[:count].tolist() == real.tolist()
            fill = fill if real.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else 0
            assert padded[count:].tolist() == torch.full((rows - count, *real.shape[1:]), fill).tolist()
        local, found = by_type(before.compacted_seeds)[of], by_type(after.compacted_seeds)[of]
        assert found[:count].tolist() == local.tolist()
        kinds = [of[0], of[2], *[of[negative_end]] * local.shape[1]] if isinstance(of, tuple) else [of]
        if local.ndim == 1:
            reached = len(places[of]) if len(rows_of[of]) == 1 else layers_of(before, bucket)[of][0]
            last = rows_of[of][0] - 1
            expected = [min(reached + i, last) for i in range(rows - count - 1)] + [last]
            assert found[count:].tolist() == expected
        else:
            sinks = [rows_of[kinds[min(column, len(kinds) - 1)]][0] - 1 for column in range(local.shape[1])]
            assert found[count:].tolist() == [sinks] * (rows - count)
    if before.batch is None:
        assert after.batch is None
        return
    for kind, trees in by_type(before.batch).items():
        expected = [padded_begin - 1] * rows_of[kind][-1]
        for local, tree in enumerate(trees.tolist()):
            expected[places[kind][local]] = starts[tree]
        assert by_type(after.batch)[kind].tolist() == expected


# --- models, whose values for real rows padding must not change


def aggregate(how: str, block: dp.Block, rows: Tensor, weights: Tensor) -> Tensor:
    """Aggregate the rows of the sources of each destination: [num_dst, width]."""
    sources, destinations = block.edge_index
    messages = rows[sources]
    zeros = messages.new_zeros((block.num_dst, messages.shape[1]))
    if how == "max":
        index = destinations.unsqueeze(1).expand_as(messages)
        return zeros.scatter_reduce(0, index, messages, "amax", include_self=False)
    if how == "attention":
        score = (messages @ weights).exp()
        total = score.new_zeros(block.num_dst).index_add(0, destinations, score)
        messages = messages * (score / total[destinations]).unsqueeze(1)
    summed = zeros.index_add(0, destinations, messages)
    degrees = block.indptr.diff().clamp(min=1).unsqueeze(1)
    return summed / degrees if how == "mean" else summed


def model(minibatch: dp.MiniBatch, features: dict[Any, Tensor], how: str) -> dict[Any, Tensor]:
    """One value for each of the seeds' layer of each node type, after a convolution for each hop over `features`."""
    rows = features
    hops = minibatch.blocks if len(minibatch.blocks) > 1 else minibatch.blocks * 2
    for hop in hops:
        after: dict[Any, Tensor] = {}
        for edge_type, block in by_type(hop).items():
            src, dst = ends_of(edge_type)
            weights = torch.linspace(-0.5, 0.5, rows[src].shape[1])
            made = aggregate(how, block, rows[src][: block.num_src], weights)
            after[dst] = after.get(dst, rows[dst][: block.num_dst]) + made
        rows = {kind: after.get(kind, rows[kind]).tanh() for kind in rows}
    return rows


def seed_values(minibatch: dp.MiniBatch, features: dict[Any, Tensor], how: str) -> dict[Any, Tensor]:
    """{type: the values of the model for the compacted seeds of a type, [n, width]}; of pairs, the product."""
    rows, values = model(minibatch, features, how), {}
    for of, local in by_type(minibatch.compacted_seeds).items():
        if local.ndim == 1:
            values[of] = rows[of][local]
        else:
            kinds = [of[0], *[of[2]] * (local.shape[1] - 1)] if isinstance(of, tuple) else [of] * local.shape[1]
            values[of] = torch.stack(
                [rows[kind][column] for kind, column in zip(kinds, local.unbind(1), strict=True)]
            ).prod(0)
    return values


def table_of(num_nodes: int, seed: int) -> Tensor:
    return torch.randn(num_nodes, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def outputs_and_gradients(
    minibatch: dp.MiniBatch, num_nodes: dict[Any, int], how: str, loss: Callable[[Tensor], Tensor]
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Return the values of the real seeds, and the gradients of the nodes' features for the sum over real seeds."""
    tables = {kind: table_of(count, i) for i, (kind, count) in enumerate(num_nodes.items())}
    features = {}
    for kind, ids in by_type(minibatch.input_nodes).items():
        is_real = (ids >= 0).unsqueeze(1)
        features[kind] = torch.where(is_real, torch.cat((tables[kind], torch.zeros(1, 4)))[ids.long()], 0.0)
    values = seed_values(minibatch, features, how)
    masks = by_type(minibatch.masks.seeds)
    real = {of: rows[masks[of]] for of, rows in values.items()}
    sum(loss(rows).sum() for rows in real.values()).backward()
    return real, {kind: table.grad for kind, table in tables.items() if table.grad is not None}
