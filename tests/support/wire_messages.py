"""Messages of the wire for tests: every dtype and odd shape, requests, facts, and what an evil sender makes."""

import struct
from dataclasses import replace

import pyarrow as pa
import torch

from datapipes.base.forms import RowForm
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.requests.steps import StepsRequest
from datapipes.distributed.wire.arrow_message import DTYPES, Message
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime

WRITES = ("author", "writes", "paper")


def random_bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits of a dtype, NaNs included; 0 and 1 for bool."""
    generator = torch.Generator().manual_seed(len(shape))
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(256, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def every_tensor() -> dict[str, torch.Tensor]:
    """Each dtype that travels in each odd shape."""
    shapes = [(), (3,), (0,), (4, 0), (0, 5), (2, 3, 1)]
    return {f"{name}.{shape}": random_bits(dtype, *shape) for name, dtype in DTYPES.items() for shape in shapes}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def plain(value: object) -> object:
    """Return a value whose tensors are their dtype, shape and bytes; the order of dicts counts."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, as_bytes(value)
    if isinstance(value, dict):
        return [(key, plain(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def expect_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert [*found] == [*expected]
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
        assert as_bytes(found[name]) == as_bytes(values), name


def a_draw() -> DrawRequest:
    ids = {"author": torch.tensor([3, 1], dtype=torch.int32), "paper": torch.tensor([7, 0, 2])}
    draws = (Draw(("author", "knows", "author"), -1, 0), Draw(WRITES, 5, 2**64 - 1))
    return DrawRequest(ids, draws, replace=True, edge_ids=True)


def a_draw_of_trees() -> DrawRequest:
    streams = {of: torch.arange(len(ids)).add(2**32 - 3).to(torch.uint32) for of, ids in a_draw().ids.items()}
    return replace(a_draw(), streams=streams)


def a_draw_by_time() -> DrawRequest:
    times = {of: ids.long() - 2**62 for of, ids in a_draw().ids.items()}
    choice = ByTime("at", None, inclusive=True, time_window=2**63 - 1)
    return replace(a_draw_of_trees(), times=times, choice=choice)


def a_draw_with_windows() -> DrawRequest:
    windows = {of: ids.long() * 2**59 for of, ids in a_draw().ids.items()}
    return replace(a_draw_by_time(), windows=windows, choice=ByTime("at", None, window_field="recent"))


def digests_of_times() -> DigestRequest:
    return DigestRequest((("author", "knows", "author"), WRITES), ByTime("at", "since"))


def some_rows() -> RowsRequest:
    node = Rows("node", "paper", ("x", "größe \U0001f4a1"), torch.tensor([4, 4, 0]))
    return RowsRequest((node, Rows("edge", WRITES, ("w",), torch.tensor([1], dtype=torch.int32))))


def some_pairs() -> EdgesRequest:
    return EdgesRequest(WRITES, torch.tensor([7, 0, 2]), torch.tensor([4, 4, 0], dtype=torch.int32))


def some_steps() -> StepsRequest:
    walks = torch.tensor([4, 0, 8]), torch.tensor([2**32 - 1, 0, 7]), torch.tensor([-1, 4, 4], dtype=torch.int32)
    return StepsRequest(WRITES, 3, 2**64 - 1, 2**32, 0.25, 4.0, True, ByWeight("größe"), *walks)


def some_facts() -> PartitionFacts:
    return PartitionFacts(
        num_parts=3,
        num_nodes={"author": 5, "paper": 9},
        num_edges={("author", "knows", "author"): 2, WRITES: 11},
        index_dtype=torch.int32,
        fingerprint="f" * 32,
        partition_id="0123456789abcdef",
        content_id="fedcba9876543210",
        features={
            ("node", "paper", "x"): RowForm(torch.bfloat16, (4, 2)),
            ("node", "paper", "größe \U0001f4a1"): RowForm(torch.float32, ()),
            ("edge", WRITES, "w"): RowForm(torch.bool, (0,)),
        },
    )


def stream_of(fields: list, columns: list, metadata: dict | None, *, batches: int = 1, options=None) -> bytes:
    """An Arrow stream of anything: (name, type, metadata) of each field, and its arrays."""
    made = [pa.field(name, kind, metadata=about) for name, kind, about in fields]
    schema = pa.schema(made, metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue().to_pybytes()


def one_column(
    dtype: str = "int64", shape: str = "[2]", data: bytes = bytes(16), header: bytes = b"{}", **more: object
) -> bytes:
    """The stream of a message of one tensor, whose form may be a lie."""
    about = {"dtype": dtype, "shape": shape}
    field = [("x", pa.large_binary(), about)]
    return stream_of(field, [pa.array([data], pa.large_binary())], {"datapipes": header}, **more)


def lying_offsets(first: int, end: int) -> bytes:
    """The stream of a message of one tensor, whose offsets say that its value has other bytes."""
    whole = one_column()
    place = whole.rindex(struct.pack("=qq", 0, 16))
    return whole[:place] + struct.pack("=qq", first, end) + whole[place + 16 :]


def message_of(tensors: dict[str, torch.Tensor], **header: object) -> Message:
    return Message(header, tensors)
