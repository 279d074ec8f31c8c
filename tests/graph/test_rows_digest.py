"""The digest of values by row: the sum that its header states, which parts of a graph add up to."""

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import csc_graphs, random_graph

from datapipes import _core
from datapipes.base.threads import threads_of_kernels
from datapipes.graph.choice import rows_digest, sum_of_digests

STEP, WORD = 0x9E3779B97F4A7C15, 2**64
RAW = (torch.uint8, torch.int16, torch.int32, torch.int64)


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def stated(indptr, bits, node_ids) -> int:
    """The sum of csrc/graph/rows_digest.h, in Python integers."""
    total = 0
    for row, node in enumerate(node_ids):
        for offset in range(int(indptr[row + 1]) - int(indptr[row])):
            x = mix((mix((int(node) + STEP) % WORD) + (offset + 1) * STEP) % WORD)
            low = mix(x ^ int(bits[int(indptr[row]) + offset]))
            total += mix((low + (x << 32 | x >> 32) % WORD + STEP) % WORD) * WORD + low
    return total % WORD**2


@examples(60)
@given(st.data(), csc_graphs(), st.sampled_from(RAW))
def test_the_digest_is_the_sum_that_the_header_states(data, graph, dtype):
    size = dtype.itemsize
    given_bits = st.lists(st.integers(0, 256**size - 1), min_size=graph.num_edges, max_size=graph.num_edges)
    bits = np.array(data.draw(given_bits), dtype=f"u{size}")
    ids = np.array(data.draw(st.permutations(range(graph.num_nodes))), dtype=np.int64) * 2**40
    expected = divmod(stated(graph.indptr, bits, ids), WORD)
    assert _core.rows_digest(graph.indptr, bits, node_ids=ids, num_threads=2) == expected
    found = rows_digest(torch.from_numpy(bits.view(f"i{size}")), torch.from_numpy(graph.indptr))
    assert found == f"int{8 * size}:{stated(graph.indptr, bits, range(graph.num_nodes)):032x}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int64])
def test_the_digests_of_parts_add_up_to_that_of_the_whole_at_any_number_of_threads(dtype):
    graph = random_graph(20_000, 90_000, rng_seed=3)
    indptr = torch.from_numpy(graph.indptr)
    values = (torch.arange(90_000) % 251).to(dtype)
    whole = rows_digest(values, indptr)
    for threads in (1, 2, 7):
        with threads_of_kernels(threads):
            assert rows_digest(values, indptr) == whole
    owner = torch.arange(20_000) * 7 % 3
    parts = []
    for part in range(3):
        ids = (owner == part).nonzero().flatten()
        of_part = torch.cat([torch.arange(int(indptr[v]), int(indptr[v + 1])) for v in ids.tolist()])
        ends = torch.cat((torch.zeros(1, dtype=torch.int64), (indptr[ids + 1] - indptr[ids]).cumsum(0)))
        parts.append(rows_digest(values[of_part], ends, node_ids=ids))
    assert sum_of_digests(parts) == whole != sum_of_digests(parts[:2])
    changed = values.clone()
    changed[77] = 1 - changed[77].to(torch.int64)
    assert rows_digest(changed, indptr) != whole


def test_values_of_nodes_are_rows_of_one_value():
    values = torch.tensor([5, -1, 7, 7])
    expected = rows_digest(values, torch.arange(5))
    assert rows_digest(values) == expected != rows_digest(values.flip(0))
    halves = [rows_digest(values[2:], node_ids=torch.tensor([2, 3])), rows_digest(values[:2])]
    assert sum_of_digests(halves) == expected
    assert rows_digest(values[:0]) == rows_digest(values[:0], torch.zeros(1, dtype=torch.int64)) == f"int64:{0:032x}"


def test_what_a_digest_of_rows_refuses(refuses):
    indptr, values = np.array([0, 2, 3]), np.zeros(3)
    for ends in ([0, 2, 1], [0, 2, 4], [-1, 2, 3], np.zeros(0, dtype=np.int64)):
        refuses(ValueError, _core.rows_digest, np.array(ends), values)
    for wrong in (np.zeros((3, 1)), np.zeros(6)[::2], np.zeros(3, dtype=complex)):
        refuses(ValueError, _core.rows_digest, indptr, wrong)
    refuses(ValueError, _core.rows_digest, indptr, values, node_ids=np.zeros(3, dtype=np.int64))
    refuses(ValueError, sum_of_digests, [f"float32:{0:032x}", f"float64:{0:032x}"])
