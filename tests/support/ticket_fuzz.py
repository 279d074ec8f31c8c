"""Requests as an evil client of the right authority may send them: good ones with changes, lies, and garbage."""

import copy
import json
import pickle
import random
from dataclasses import replace

import pyarrow as pa
import torch

import datapipes as dp
from datapipes.distributed import describe_chain
from datapipes.distributed.partition_facts import hello_to_message
from datapipes.distributed.requests.chains import (
    ClaimRequest,
    CreateRequest,
    ListRequest,
    MinibatchRequest,
    request_to_message,
)
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.requests.steps import StepsRequest, WholeRowsRequest
from datapipes.distributed.wire.arrow_message import HEADER, Message, to_bytes
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import (
    AnswerTooLarge,
    BadRequest,
    OtherPartition,
    Unavailable,
    UnknownProducer,
)
from datapipes.sampling.layer_neighbor_sampler import Numbered
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime

# What a server may tell; anything else is a bug of it.
TOLD = (BadRequest, OtherPartition, AnswerTooLarge, Unavailable, UnknownProducer)
TOLD += (ValueError, TypeError, IndexError, KeyError)
VALUES = (None, True, -1, 0, 2**31, 2**62, 2**64 - 1, "", "x", "draw", [], {}, [[]], [None], "\ud800", "x" * 5000)
SIZES = (0, 1, 7, 8, 16, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


def of_chains(chain: dp.Stage, meant: Meant) -> list[Message]:
    """Return requests of each kind about producers; the first ones make one."""
    described, client = describe_chain(chain), "c" * 32
    create = CreateRequest(client, described.header, "train", 0)
    made = request_to_message(create, meant, described.tensors)
    asks = [MinibatchRequest(client, 0, 0, 0), ClaimRequest(client, 0), ListRequest(client)]
    return [*[made] * 6, *(request_to_message(ask, meant) for ask in asks)]


class TicketFuzz:
    """An endless row of requests, the same for a seed; with `chain` those of producers."""

    def __init__(self, ids: torch.Tensor, meant: Meant, rng_seed: int, chain: dp.Stage | None = None) -> None:
        self.random = random.Random(rng_seed)
        draw = DrawRequest({None: ids}, (Draw(None, 3, 7),), edge_ids=True)
        rows = RowsRequest((Rows("node", None, ("x", "y", "mask"), ids),))
        trees = replace(draw, streams={None: torch.arange(len(ids)).to(torch.uint32)})
        by_time = replace(trees, times={None: ids.long()}, choice=ByTime("time", None))
        self.messages = [
            draw.to_message(meant),
            trees.to_message(meant),
            by_time.to_message(meant),
            replace(draw, choice=ByWeight("mask")).to_message(meant),
            (replace(draw, choice=Numbered(3, 2, (((1, 2),),), "mask"))).to_message(meant),
            rows.to_message(meant),
            hello_to_message(meant),
            (DigestRequest((None,), ByTime("time", None))).to_message(meant),
            Message(request_header("statistics", meant), {}),
            EdgesRequest(None, ids, ids.flip(0)).to_message(meant),
            StepsRequest(None, 2, 7, 2**20, 0.5, 2.0, True, ByWeight("mask"), ids, ids.long(), ids.flip(0)).to_message(
                meant
            ),
            WholeRowsRequest(None, False, ByWeight("mask"), ids, ids[:0]).to_message(meant),
        ]
        if chain is not None:
            self.messages = of_chains(chain, meant)
        self.tickets = [to_bytes("fuzz", message) for message in self.messages]
        self.ways = (self.flipped, self.flipped, self.lengths, self.cut, self.garbage, self.pickled)
        self.ways += (self.header, self.header, self.text, self.tensors, self.metadata, self.compressed)

    def next(self) -> bytes:
        return self.random.choice(self.ways)()

    # --- bytes

    def flipped(self) -> bytes:
        data = bytearray(self.random.choice(self.tickets))
        for _ in range(self.random.choice((1, 1, 2, 8, 64))):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def lengths(self) -> bytes:
        """Numbers of the flatbuffers, and offsets, that lie."""
        data = bytearray(self.random.choice(self.tickets))
        for _ in range(self.random.choice((1, 1, 3))):
            width = self.random.choice((2, 4, 8))
            place = self.random.randrange(0, len(data) - width, width)
            value = self.random.choice(SIZES) + self.random.choice((0, 0, 1, -1))
            data[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        return bytes(data)

    def cut(self) -> bytes:
        data = self.random.choice(self.tickets)
        place = self.random.randrange(len(data))
        return self.random.choice((data[:place], data[place:], data[:place] + data[place + 8 :], data + data))

    def garbage(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 8, 100, 10_000)))

    def pickled(self) -> bytes:
        data = pickle.dumps({"kind": "draw", "ids": list(range(10))})
        return self.random.choice((data, b"\xff\xff\xff\xff" + data, data + self.random.choice(self.tickets)))

    # --- messages

    def header(self) -> bytes:
        """A value of the header, at any depth, is another one."""
        message = self.random.choice(self.messages)
        header = copy.deepcopy(message.header)
        place, key = header, self.random.choice([*header])
        while isinstance(place[key], (list, dict)) and place[key] and self.random.randrange(3):
            place = place[key]
            key = self.random.choice([*place] if isinstance(place, dict) else range(len(place)))
        if self.random.randrange(6):
            place[key] = self.random.choice(VALUES)
        else:
            del place[key]
        return to_bytes("fuzz", Message(header, message.tensors))

    def text(self) -> bytes:
        """A header that is no JSON, or none of ours."""
        good = json.dumps(self.random.choice(self.messages).header)
        place = self.random.randrange(len(good))
        bad = ("NaN", "1e999", "-Infinity", "9" * 5000, "[" * 50_000, "\x00", '"', "1.5", "")
        text = good[:place] + self.random.choice(bad) + good[place + self.random.choice((0, 1)) :]
        return self.stream(text.encode(), self.random.choice(self.messages).tensors)

    def tensors(self) -> bytes:
        """Ids of any dtype, shape and number."""
        message = self.random.choice(self.messages[:6])
        shape = self.random.choice(((0,), (1,), (5,), (2, 3), (), (1000,), (0, 2**40)))
        dtype = self.random.choice((torch.int64, torch.int32, torch.int16, torch.bool, torch.float32, torch.bfloat16))
        values = torch.zeros(shape, dtype=dtype)
        if dtype in (torch.int64, torch.int32):
            values = values + self.random.choice((0, 1, -1, 59, 60, 2**31 - 1, -(2**31)))
        names = self.random.choice((["ids.0"], ["ids.0", "ids.1"], [], ["x"], ["ids.00"], [""], [*message.tensors]))
        tensors = dict.fromkeys(names, values)
        if self.random.randrange(2):  # one column is as it was
            tensors |= {name: message.tensors[name] for name in names[:1] if name in message.tensors}
        return to_bytes("fuzz", Message(message.header, tensors))

    def metadata(self) -> bytes:
        """Dtypes and shapes that the bytes do not have."""
        shape = [self.random.choice((*SIZES, -1)) for _ in range(self.random.randrange(4))]
        forms = (str(shape), "[1.5]", "NaN", "x", "[" * 100, str([1] * 100))
        return self.stream(
            json.dumps(self.random.choice(self.messages).header).encode(),
            {"ids.0": torch.zeros(self.random.randrange(10), dtype=torch.int64)},
            dtype=self.random.choice(("int64", "bool", "qint8", "Tensor", "", "complex128")),
            shape=self.random.choice(forms),
            kind=self.random.choice((pa.large_binary(), pa.large_binary(), pa.binary(), pa.large_utf8())),
        )

    def compressed(self) -> bytes:
        """Few bytes that would be many."""
        options = pa.ipc.IpcWriteOptions(compression=self.random.choice(("lz4", "zstd")))
        zeros = torch.zeros(self.random.choice((1, 2**20)), dtype=torch.int64)
        return self.stream(json.dumps(self.messages[0].header).encode(), {"ids.0": zeros}, options=options)

    def stream(self, header: bytes, tensors: dict, dtype="int64", shape=None, kind=None, options=None) -> bytes:
        fields, columns = [], []
        for name, values in tensors.items():
            about = {"dtype": dtype, "shape": str([*values.shape]) if shape is None else shape}
            fields.append(pa.field(name, kind or pa.large_binary(), metadata=about))
            columns.append(pa.array([values.numpy().tobytes()], pa.large_binary()).cast(kind or pa.large_binary()))
        schema = pa.schema(fields, metadata={HEADER: header})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            if columns:
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        return sink.getvalue().to_pybytes()
