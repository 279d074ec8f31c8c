"""The plain Python twin of the C++ core: slow, obvious, in Python integers.

It is written from docs/semantics.md alone, section by section, and shares neither code nor ideas with csrc/.
So equal results are evidence that both follow the page. It refuses only what the page refuses and trusts all
other arguments. Ids are given as any sequence of integers and returned as lists of int.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

STREAM_VERSION = 1
WORD = 2**32
EdgeType = tuple[str, str, str]

# --- Section 1: random words


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four words of Philox 4x32-10 (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            product1 // WORD ^ c1 ^ k0,
            product1 % WORD,
            product0 // WORD ^ c3 ^ k1,
            product0 % WORD,
        )
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return c0, c1, c2, c3


def halves(number: int) -> tuple[int, int]:
    """Return the low and the high word of a 64-bit number."""
    return number % WORD, number // WORD


HOP_KEY_BITS = {"seed": 64, "epoch": 32, "batch": 48, "stage": 16, "hop": 8, "etype": 16}


def hop_key(seed: int, epoch: int, batch: int, stage: int, hop: int, etype: int) -> int:
    """Section 1.1; a ValueError names the first number outside its range."""
    numbers = {"seed": seed, "epoch": epoch, "batch": batch, "stage": stage, "hop": hop, "etype": etype}
    for name, bits in HOP_KEY_BITS.items():
        if not 0 <= numbers[name] < 2**bits:
            raise ValueError(f"hop_key: {name} must be in [0, 2^{bits}), got {numbers[name]}")
    c0 = epoch
    c1 = batch % WORD
    c2 = batch // WORD + stage * 2**16
    c3 = STREAM_VERSION + hop * 2**8 + etype * 2**16
    w = philox4x32((c0, c1, c2, c3), halves(seed))
    return w[0] + w[1] * WORD


class Stream:
    """Sections 1.2 and 1.3: the words of the stream `(key, node, stream)`, and bounded draws from them."""

    def __init__(self, key: int, node: int, stream: int = 0) -> None:
        self.key, self.node, self.stream = key, node, stream
        self.words_taken = 0

    def word(self) -> int:
        block, place = divmod(self.words_taken, 4)
        self.words_taken += 1
        return philox4x32((block, self.stream, *halves(self.node)), halves(self.key))[place]

    def bounded(self, n: int) -> int:
        if n < WORD:
            while True:
                m = self.word() * n
                if m % WORD >= WORD % n:
                    return m // WORD
        while True:
            high = self.word()
            low = self.word()
            m = (high * WORD + low) * n
            if m % WORD**2 >= WORD**2 % n:
                return m // WORD**2


# --- Section 2: the order of the items


def shuffled(n: int, key: int) -> list[int]:
    """Fisher-Yates, the permutation of n <= 2^16 items."""
    items = list(range(n))
    stream = Stream(key, 0, 0)
    for i in range(n - 1, 0, -1):
        j = stream.bounded(i + 1)
        items[i], items[j] = items[j], items[i]
    return items


def feistel_at(n: int, key: int, x: int) -> int:
    """Return entry x of the permutation of n > 2^16 items: a Feistel network with cycle walking."""
    b = (n - 1).bit_length()
    r = b // 2
    l = b - r  # noqa: E741  the page's name
    while True:
        left, right = x // 2**r, x % 2**r
        for i in range(10):
            if i % 2 == 0:
                left ^= philox4x32((right, i, 0, 1), halves(key))[0] % 2**l
            else:
                right ^= philox4x32((left, i, 0, 1), halves(key))[0] % 2**r
        x = left * 2**r + right
        if x < n:
            return x


def permutation(n: int, key: int) -> list[int]:
    """Return the whole order of n items."""
    return shuffled(n, key) if n <= 2**16 else [feistel_at(n, key, x) for x in range(n)]


def permutation_at(n: int, key: int, x: int) -> int:
    """Return one entry of the order of n items."""
    return shuffled(n, key)[x] if n <= 2**16 else feistel_at(n, key, x)


# --- Section 3: the picks of a node


def choose(n: int, fanout: int, replace: bool, stream: Stream) -> list[int]:
    """Return the picks among n in-edges as offsets 0 .. n-1."""
    if fanout == -1:
        return list(range(n))
    if fanout == 0 or n == 0:
        return []
    k = fanout
    if replace:
        return [stream.bounded(n) for _ in range(k)]
    if k >= n:
        return list(range(n))
    m = min(k, n - k)
    chosen: set[int] = set()
    for j in range(n - m, n):
        t = stream.bounded(j + 1)
        chosen.add(j if t in chosen else t)
    if m == k:
        return sorted(chosen)
    return [offset for offset in range(n) if offset not in chosen]


def sums_of(weights: Sequence[Any]) -> list[float]:
    """Section 3.1: the running sums of a row. Python's floats are doubles."""
    sums: list[float] = []
    for weight in weights:
        sums.append((sums[-1] if sums else 0.0) + float(weight))
    if sums and not math.isfinite(sums[-1]):
        raise ValueError("the sum of a row is not finite")
    return sums


def grows(sums: Sequence[float], offset: int) -> bool:
    return sums[offset] > (sums[offset - 1] if offset > 0 else 0.0)


def weighted_draw(sums: Sequence[float], stream: Stream) -> int:
    """Return the first offset whose sum exceeds x; the last that grows where rounding makes x the whole sum."""
    high = stream.word()
    low = stream.word()
    x = float(Fraction((high * WORD + low) // 2**11, 2**53)) * sums[-1]
    for offset, total in enumerate(sums):
        if total > x:
            return offset
    return [offset for offset in range(len(sums)) if grows(sums, offset)][-1]


def choose_weighted(weights: Sequence[Any], fanout: int, replace: bool, stream: Stream) -> list[int]:
    """Return the picks among in-edges of these weights as offsets 0 .. n-1."""
    sums = sums_of(weights)
    drawable = [offset for offset in range(len(sums)) if grows(sums, offset)]
    if fanout == -1:
        return drawable
    if fanout == 0 or not drawable:
        return []
    if replace:
        return [weighted_draw(sums, stream) for _ in range(fanout)]
    if fanout >= len(drawable):
        return drawable
    return sorted(successive_picks(sums, fanout, stream))


def successive_picks(sums: Sequence[float], count: int, stream: Stream) -> list[int]:
    """Return `count` distinct offsets in the order in which they become picks."""
    picks: list[int] = []
    current, rejected = sums, 0
    while len(picks) < count:
        drawn = weighted_draw(current, stream)
        if drawn not in picks:
            picks.append(drawn)
            continue
        rejected += 1
        if rejected == 8 + len(sums) // 8:
            left = [sums[i] - (sums[i - 1] if i > 0 else 0.0) for i in range(len(sums))]
            for pick in picks:
                left[pick] = 0.0
            current, rejected = sums_of(left), 0
    return picks


def item_order(weights: Sequence[Any], count: int, key: int) -> list[int]:
    """Section 2.1: the first `count` items of an epoch by weight without replacement."""
    return successive_picks(sums_of(weights), count, Stream(key, 0, 11))


def drawn_item(n: int, weights: Sequence[Any] | None, key: int, x: int) -> int:
    """Section 2.1: the item at place x of an epoch with replacement."""
    stream = Stream(key, x, 10)
    return stream.bounded(n) if weights is None else weighted_draw(sums_of(weights), stream)


def picks_of(
    indptr: Sequence[int], v: int, fanout: int, replace: bool, key: int, weights: Sequence[Any] | None = None
) -> list[int]:
    """Return the positions drawn among the in-edges of v."""
    begin, end = int(indptr[v]), int(indptr[v + 1])
    stream = Stream(key, v, 0)
    if weights is None:
        return [begin + offset for offset in choose(end - begin, fanout, replace, stream)]
    return [begin + offset for offset in choose_weighted(weights[begin:end], fanout, replace, stream)]


# --- Section 4: hops and local ids


class Hop(NamedTuple):
    indptr: list[int]
    indices: list[int]
    edge_ids: list[int]
    num_src: int


class Neighborhood(NamedTuple):
    nodes: list[int]
    compacted_seeds: list[int]
    hops: list[Hop]


def sample_hop(
    indptr: Sequence[int],
    indices: Sequence[int],
    seeds: Sequence[int],
    *,
    fanout: int,
    replace: bool,
    key: int,
    weights: Sequence[Any] | None = None,
) -> tuple[list[int], list[int], list[int]]:
    """Return the offsets of each seed's picks, the picked neighbors (global ids) and their positions."""
    offsets, neighbors, positions = [0], [], []
    for v in map(int, seeds):
        for position in picks_of(indptr, v, fanout, replace, key, weights):
            neighbors.append(int(indices[position]))
            positions.append(position)
        offsets.append(len(positions))
    return offsets, neighbors, positions


def compact(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the distinct ids by first occurrence, and the local id of each id."""
    local_ids: dict[int, int] = {}
    local = [local_ids.setdefault(v, len(local_ids)) for v in map(int, ids)]
    return list(local_ids), local


def sample_neighbors(
    indptr: Sequence[int],
    indices: Sequence[int],
    edge_ids: Sequence[int] | None,
    seeds: Sequence[int],
    *,
    fanouts: Sequence[int],
    keys: Sequence[int],
    replace: bool,
    frontier: str,
    weights: Sequence[Any] | None = None,
) -> Neighborhood:
    """Sample all hops of a minibatch; `fanouts` and `keys` are in hop order, hop 0 first. `weights`: of the edges."""
    assert frontier in ("all", "new")
    nodes, compacted_seeds = compact(seeds)
    local_ids = {v: place for place, v in enumerate(nodes)}
    hops = []
    found_before_last_hop = 0
    for fanout, key in zip(fanouts, keys, strict=True):
        num_dst = len(nodes)
        hop = Hop([0], [], [], 0)
        for place in range(num_dst):
            if frontier == "all" or place >= found_before_last_hop:
                for position in picks_of(indptr, nodes[place], fanout, replace, key, weights):
                    u = int(indices[position])
                    if u not in local_ids:
                        local_ids[u] = len(nodes)
                        nodes.append(u)
                    hop.indices.append(local_ids[u])
                    hop.edge_ids.append(position if edge_ids is None else int(edge_ids[position]))
            hop.indptr.append(len(hop.indices))
        hops.append(hop._replace(num_src=len(nodes)))
        found_before_last_hop = num_dst
    return Neighborhood(nodes, compacted_seeds, hops)


class TypedNeighborhood(NamedTuple):
    nodes: dict[str, list[int]]
    compacted_seeds: dict[Any, list[Any]]
    hops: list[dict[EdgeType, Hop]]


def sample_typed_neighbors(
    node_types: Sequence[str],
    relations: Mapping[EdgeType, tuple[Sequence[int], Sequence[int], Sequence[int] | None]],
    seeds: Mapping[Any, Sequence[Any]],
    *,
    fanouts: Sequence[Mapping[EdgeType, int]],
    key_of: Callable[[int, int], int],
    replace: bool,
    frontier: str,
    weights: Mapping[EdgeType, Sequence[Any]] | None = None,
) -> TypedNeighborhood:
    """Section 4.1. `fanouts` is in hop order, hop 0 first; a missing edge type is 0.

    `relations` has indptr, indices and edge ids of each edge type. `seeds` has ids by node type, or pairs by edge type.
    `key_of(hop, ordinal)` is the hop key of an edge type.
    """
    edge_types = sorted(relations)

    def draw(hop: int, edge_type: EdgeType, v: int, fanout: int) -> list[int]:
        of_edges = None if weights is None else weights[edge_type]
        key = key_of(hop, edge_types.index(edge_type))
        return picks_of(relations[edge_type][0], v, fanout, replace, key, of_edges)

    return typed_hops(node_types, relations, seeds, fanouts=fanouts, frontier=frontier, draw=draw)


def typed_hops(
    node_types: Sequence[str],
    relations: Mapping[EdgeType, tuple[Sequence[int], Sequence[int], Sequence[int] | None]],
    seeds: Mapping[Any, Sequence[Any]],
    *,
    fanouts: Sequence[Mapping[EdgeType, int]],
    frontier: str,
    draw: Callable[[int, EdgeType, int, int], list[int]],
) -> TypedNeighborhood:
    """The hops of section 4.1, however they draw: `draw(hop, edge type, node, fanout)` returns positions."""
    assert frontier in ("all", "new")
    nodes: dict[str, list[int]] = {node_type: [] for node_type in node_types}

    def local_id(node_type: str, v: int) -> int:
        if v not in nodes[node_type]:
            nodes[node_type].append(v)
        return nodes[node_type].index(v)

    compacted_seeds: dict[Any, list[Any]] = {}
    for of in sorted(seeds):
        if isinstance(of, str):
            compacted_seeds[of] = [local_id(of, int(v)) for v in seeds[of]]
        else:
            compacted_seeds[of] = [[local_id(of[0], int(u)), local_id(of[2], int(v))] for u, v in seeds[of]]
    sampled = [edge_type for edge_type in sorted(relations) if any(fanout.get(edge_type, 0) != 0 for fanout in fanouts)]
    hops = []
    found_before_last_hop = dict.fromkeys(nodes, 0)
    for hop, fanout in enumerate(fanouts):
        found_before = {node_type: len(found) for node_type, found in nodes.items()}
        blocks = {}
        for edge_type in sampled:
            src, _, dst = edge_type
            _, indices, edge_ids = relations[edge_type]
            block = Hop([0], [], [], 0)
            for place in range(found_before[dst]):
                if frontier == "all" or place >= found_before_last_hop[dst]:
                    for position in draw(hop, edge_type, nodes[dst][place], fanout.get(edge_type, 0)):
                        block.indices.append(local_id(src, int(indices[position])))
                        block.edge_ids.append(position if edge_ids is None else int(edge_ids[position]))
                block.indptr.append(len(block.indices))
            blocks[edge_type] = block
        hops.append({of: block._replace(num_src=len(nodes[of[0]])) for of, block in blocks.items()})
        found_before_last_hop = found_before
    return TypedNeighborhood(nodes, compacted_seeds, hops)


def coo_to_csc(src: Sequence[int], dst: Sequence[int], num_nodes: int) -> tuple[list[int], list[int], list[int]]:
    """Return indptr, indices and, for each in-edge, its index among the given edges; edges keep their order."""
    indptr, order = [0], []
    for v in range(num_nodes):
        order += [edge for edge, destination in enumerate(dst) if destination == v]
        indptr.append(len(order))
    return indptr, [int(src[edge]) for edge in order], order


def gather_rows(rows: Sequence[bytes], ids: Sequence[int]) -> list[bytes]:
    """Return the chosen rows."""
    return [rows[int(i)] for i in ids]


# --- Values stored with fewer bits: datapipes/features/stored_values.py and csrc/gather/decode.h are the page


def float32_bits(value: Fraction) -> int:
    """Return the bits of the float32 nearest to `value`, of two the even one; a ValueError where it is infinite."""
    sign, size = int(value < 0), abs(value)
    exponent = -149  # of the last bit; a normal number has 24
    if size >= Fraction(1, 2**126):
        exponent = size.numerator.bit_length() - size.denominator.bit_length() - 24
        exponent += size >= Fraction(2) ** (exponent + 24)
    count = round(size / Fraction(2) ** exponent)  # round() of Python is half to even
    bits = (exponent + 149) * 2**23 + count
    if bits >= 255 * 2**23:
        raise ValueError(f"{float(value)} has no float32")
    return sign * 2**31 + bits


def float32_value(bits: int) -> Fraction:
    """Return the number of the bits of a float32 that is finite."""
    field, rest = bits // 2**23 % 256, bits % 2**23
    size = Fraction(rest if field == 0 else rest + 2**23) * Fraction(2) ** (max(field, 1) - 150)
    return -size if bits >= 2**31 else size


def decoded_float16(bits: int) -> int:
    """Return the bits of the float32 of a float16; a NaN keeps its sign and payload, and is quiet."""
    sign, field, rest = bits // 2**15, bits // 2**10 % 32, bits % 2**10
    if field == 31:
        return sign * 2**31 + 255 * 2**23 + (rest * 2**13 | 2**22 if rest else 0)
    size = Fraction(rest if field == 0 else rest + 2**10) * Fraction(2) ** (max(field, 1) - 25)
    return sign * 2**31 + float32_bits(size)


def decoded_bfloat16(bits: int) -> int:
    """Return the bits of the float32 of a bfloat16: the upper half of them."""
    return bits * 2**16


def decoded_int8(number: int, scale: int) -> int:
    """Return the bits of number * scale, a float32 that is finite and not negative; rounded once."""
    product = number * float32_value(scale)
    return float32_bits(product) if number >= 0 or product else 2**31  # a negative one times 0 is -0


def encoded_float16(bits: int) -> int:
    """Return the float16 nearest to a finite float32; a ValueError where it is infinite."""
    size = abs(float32_value(bits))
    exponent = -24  # of the last bit; a normal number has 11
    while size >= Fraction(2) ** (exponent + 11):
        exponent += 1
    half = (exponent + 24) * 2**10 + round(size / Fraction(2) ** exponent)
    if half >= 31 * 2**10:
        raise ValueError(f"{float(size)} has no float16")
    return bits // 2**31 * 2**15 + half


def encoded_bfloat16(bits: int) -> int:
    """Return the bfloat16 nearest to a finite float32; a ValueError where it is infinite."""
    upper = round(Fraction(bits, 2**16))
    if upper % 2**15 >= 255 * 2**7:
        raise ValueError(f"{bits:#x} has no bfloat16")
    return upper


def encoded_int8(column: Sequence[int]) -> tuple[list[int], int]:
    """Return the numbers and the scale of a column of finite float32, all as bits of float32 but the numbers."""
    values = [float32_value(bits) for bits in column]
    scale = float32_bits(max(map(abs, values), default=Fraction(0)) / 127)
    try:
        decoded_int8(127, scale)
    except ValueError:
        scale -= 1  # the float32 below it
    step = float32_value(scale)
    quotients = [float32_value(float32_bits(value / step)) if step else Fraction(0) for value in values]
    return [max(-127, min(127, round(quotient))) for quotient in quotients], scale


# --- Partitioning


def undirected(edges: Sequence[tuple[int, int]], num_nodes: int) -> list[list[int]]:
    """Return the neighbors of each node, ascending: along and against the edges, no node its own, each once."""
    into = [{u for u, w in edges if w == v} for v in range(num_nodes)]
    out_of = [{w for u, w in edges if u == v} for v in range(num_nodes)]
    return [sorted((into[v] | out_of[v]) - {v}) for v in range(num_nodes)]


class Measure:
    """What even_parts evens: how much of it each node has, its bound, and the loads of the parts."""

    def __init__(self, amounts: Sequence[int], parts: Sequence[int], num_parts: int) -> None:
        total = sum(amounts)
        self.amounts, self.mean = amounts, total / num_parts
        self.bound = max(11 * total // (10 * num_parts), -(-total // num_parts), max(amounts))
        self.load = [sum(a for a, p in zip(amounts, parts, strict=True) if p == part) for part in range(num_parts)]

    def excess(self, part: int, more: int = 0) -> float:
        return max(self.load[part] + more - self.bound, 0) / self.mean


def even_parts(
    in_edges: Sequence[Sequence[int]],
    measures: Sequence[Sequence[int]],
    parts: Sequence[int],
    num_parts: int,
    more_cut: int = 0,
) -> tuple[list[int], int, int]:
    """Return the parts, evened, and the edges cut before and after; csrc/partition/even_parts.h is the page.

    Args:
        in_edges: the sources of the in-edges of each node, all types in one numbering.
        measures: of each measure what each node has.
    """
    part, nodes = list(parts), range(len(in_edges))
    edges = [(u, v) for v in nodes for u in in_edges[v] if u != v]
    measured = [Measure(amounts, parts, num_parts) for amounts in measures if any(amounts)]

    def cut() -> int:
        return sum(part[u] != part[v] for u, v in edges)

    before = cut()
    most_cut = before + max(15 * before // 100, more_cut)
    left_alone = set()
    for _ in range(min(4 * num_parts + 8, max(2**32 // max(len(part), 1), 264))):
        over = [(m.excess(p), -p, -i) for p in range(num_parts) for i, m in enumerate(measured)]
        over = [each for each in over if each[0] > 0.01 and each[1:] not in left_alone]
        if not over:
            break
        most, minus_part, minus_measure = max(over)
        giver, chosen = -minus_part, measured[-minus_measure]
        taker = min((p for p in range(num_parts) if p != giver), key=lambda p: (chosen.load[p], p))
        _even_turn(part, in_edges, edges, measured, giver, taker, cut, most_cut)
        if chosen.excess(giver) >= most:
            left_alone.add((minus_part, minus_measure))
    return part, before, cut()


def _even_turn(part, in_edges, edges, measured, giver, taker, cut, most_cut) -> None:
    def side(other: int) -> int:
        return (part[other] == giver) - (part[other] == taker)

    def of_in_edges(v: int) -> int:
        return sum(side(u) for u in in_edges[v] if u != v)

    def of_out_edges(v: int) -> int:
        return sum(side(w) for u, w in edges if u == v)

    uneven = [m for m in measured if m.excess(giver) > 0]
    counted = {v: of_in_edges(v) for v in range(len(part)) if part[v] == giver}  # as they were counted last

    def price(v: int) -> float:
        loss = counted[v] + of_out_edges(v)
        if loss <= 0:
            return float(loss)
        has = 0.0
        for m in uneven:  # Python's own sum of floats is more exact
            has += m.amounts[v] / m.mean
        return loss / has if has else math.inf

    queue, refused = [(price(v), v) for v in counted], set()
    heapq.heapify(queue)
    while queue:
        was, v = heapq.heappop(queue)
        if part[v] != giver or v in refused or price(v) != was:
            continue
        if counted[v] + of_out_edges(v) >= 0 and all(m.excess(giver) == 0 for m in measured):
            break
        less = 0.0
        for m in measured:
            less += m.excess(giver) - m.excess(giver, -m.amounts[v]) + m.excess(taker) - m.excess(taker, m.amounts[v])
        if less < 0 or (less == 0 and counted[v] + of_out_edges(v) >= 0):
            continue
        counted[v] = of_in_edges(v)
        loss = counted[v] + of_out_edges(v)
        if cut() + loss > most_cut:
            refused.add(v)
            continue
        part[v] = taker
        for m in measured:
            m.load[giver] -= m.amounts[v]
            m.load[taker] += m.amounts[v]
        for u in in_edges[v]:
            if u != v and part[u] == giver:
                heapq.heappush(queue, (price(u), u))


def fennel(
    in_edges: Sequence[Sequence[int]], weights: Sequence[int], num_parts: int, key: int, passes: int
) -> list[list[int]]:
    """Return the part of each node after each pass; csrc/partition/fennel.h is the page.

    Args:
        in_edges: the sources of the in-edges of each node, all types in one numbering.
    """
    num_nodes, num_edges = len(in_edges), sum(map(len, in_edges))
    nodes, parts = range(num_nodes), range(num_parts)
    total = sum(weights)
    limit = total // num_parts + 3 * total // (100 * num_parts)
    penalty = 2.0 * num_edges * num_parts / (num_nodes * total)
    of_block = min(max(num_nodes // 256, 1), 1024)
    num_blocks = -(-num_nodes // of_block)
    blocks = [nodes[block * of_block : (block + 1) * of_block] for block in permutation(num_blocks, key)]
    part: dict[int, int] = {}
    candidate, lead = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    after = []
    for _ in range(passes):
        load = dict.fromkeys(parts, 0)
        for v in (v for block in blocks for v in block):
            pull = dict.fromkeys(parts, 0)
            for u in in_edges[v]:
                if u != v and u in part:
                    pull[part[u]] += 1
            if lead[v] > 0:
                pull[candidate[v]] += lead[v]
            lead[v] = 0
            lightest = min(parts, key=lambda p: (load[p], p))
            allowed = [p for p in parts if p == lightest or load[p] + weights[v] <= limit]
            part[v] = max(allowed, key=lambda p: (pull[p] - penalty * load[p], -load[p], -p))
            load[part[v]] += weights[v]
            for u in in_edges[v]:
                if u == v:
                    continue
                if lead[u] == 0:
                    candidate[u], lead[u] = part[v], 1
                elif candidate[u] != part[v]:
                    lead[u] -= 1
                elif lead[u] < 2**16 - 1:
                    lead[u] += 1
        after.append([part[v] for v in nodes])
    return after


# --- Section 5: message and digest


def digest(message: Mapping[str, np.ndarray | tuple[str, np.ndarray]]) -> str:
    """Return the digest of a message.

    A value is an array, or `(dtype name, array)` if NumPy lacks the dtype or has another name for it. The array
    then holds the same bits in another dtype, for example uint16 for bfloat16.
    """

    def integer(number: int) -> bytes:
        return number.to_bytes(8, "little", signed=True)

    state = hashlib.blake2b(digest_size=16)
    for key in sorted(message, key=lambda name: name.encode("utf-8")):
        value = message[key]
        name, array = value if isinstance(value, tuple) else (value.dtype.name, value)
        content = array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")
        state.update(integer(len(key.encode("utf-8"))) + key.encode("utf-8"))
        state.update(integer(len(name)) + name.encode("ascii"))
        state.update(integer(array.ndim) + b"".join(integer(size) for size in array.shape))
        state.update(integer(len(content)) + content)
    return state.hexdigest()
