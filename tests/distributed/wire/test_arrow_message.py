"""Messages as Arrow: every dtype, without copies, and nothing that is wrong gets through."""

import io
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from wire_messages import as_bytes, every_tensor, expect_equal, lying_offsets, message_of, one_column, stream_of

from datapipes.distributed.wire.arrow_message import Message, to_batches, to_bytes
from datapipes.distributed.wire.arrow_reading import MOST_HEADER_BYTES, BadMessage, from_batches, from_bytes

LIMIT = 2**20
HEADER = {"datapipes": "{}"}


def read(data: bytes, limit: int = LIMIT) -> Message:
    return from_bytes("server", data, limit)


@pytest.mark.parametrize("batch_bytes", [2**62, 1000, 7])
def test_every_dtype_and_shape_comes_back_with_its_bits(batch_bytes):
    tensors, header = every_tensor(), {"key": 2**64 - 1, "name": "größe \ud800", "list": [None, True, "x"]}
    schema, batches = to_batches("client", Message(header, tensors), batch_bytes)
    found = from_batches("server", schema, batches, LIMIT)
    assert found.header == header
    expect_equal(found.tensors, tensors)
    if batch_bytes == 2**62:
        found = read(to_bytes("client", Message(header, tensors)))
        assert found.header == header
        expect_equal(found.tensors, tensors)


def test_batches_are_cut_between_rows_at_so_many_bytes_and_all_have_some():
    tensors = {"a": torch.arange(5), "b": torch.arange(3, dtype=torch.int8), "c": torch.arange(2)}
    _, batches = to_batches("client", message_of(tensors), 24)
    sizes = [[len(each[0].as_py()) for each in batch.columns] for batch in batches]
    assert sizes == [[24, 0, 0], [16, 3, 0], [0, 0, 16]]
    wide = {"a": torch.zeros(3, 5, dtype=torch.int64), "b": torch.arange(2)}  # a row does not fit into a batch
    _, batches = to_batches("client", message_of(wide), 24)
    assert [[len(each[0].as_py()) for each in batch.columns] for batch in batches] == [[40, 0]] * 3 + [[0, 16]]


@pytest.mark.parametrize("tensors", [{}, {"a": torch.empty(0, 3)}, {"a": torch.tensor(7)}], ids=["none", "0", "one"])
def test_messages_of_few_bytes(tensors):
    expect_equal(read(to_bytes("client", message_of(tensors))).tensors, tensors)


def test_what_is_sent_and_what_is_received_shares_memory():
    values = torch.arange(1000).view(10, 100)
    _, batches = to_batches("client", message_of({"a": values}))
    assert next(batches).columns[0].buffers()[2].address == values.data_ptr()
    data = pa.py_buffer(to_bytes("client", message_of({"a": values})))
    found = read(data).tensors["a"]
    assert data.address <= found.data_ptr() < data.address + data.size
    kept = found.clone()
    del data  # the tensor keeps the memory
    assert torch.equal(found, kept)


def test_values_that_are_not_aligned_are_copied():
    data = to_bytes("client", message_of({"a": torch.arange(10), "b": torch.arange(9, dtype=torch.int16)}))
    for shift in range(1, 8):
        room = pa.py_buffer(bytes(shift) + data)[shift:]
        found = read(room).tensors
        assert all(each.data_ptr() % each.element_size() == 0 for each in found.values())
        expect_equal(found, {"a": torch.arange(10), "b": torch.arange(9, dtype=torch.int16)})


def test_tensors_of_any_strides_are_sent_as_they_read():
    wide = torch.arange(12.0).view(3, 4)
    pairs = torch.complex(wide, -wide)
    tensors = {
        "t": wide.t(),
        "step": wide[:, ::2],
        "wide": wide[:1].expand(5, 4),
        "conj": pairs.conj(),
        "neg": pairs.conj().imag,
    }
    found = read(to_bytes("client", message_of(tensors))).tensors
    for name, values in tensors.items():
        assert torch.equal(found[name], values.resolve_conj().resolve_neg()), name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.eye(2).to_sparse(), "client: x must be a dense tensor in host memory"),
        (torch.empty(2, device="meta"), "client: x must be a dense tensor in host memory"),
        (torch.empty(2, dtype=torch.bits8), "client: x has the dtype torch.bits8; allowed"),
        (np.ones(2), "client: x must be a dense tensor"),
    ],
    ids=["sparse", "device", "bits", "numpy"],
)
def test_what_cannot_be_sent(value, text):
    with pytest.raises(TypeError, match=text):
        to_bytes("client", message_of({"x": value}))


def test_a_header_with_nan_is_not_sent():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_bytes("client", message_of({}, value=float("nan")))


# --- what others may send

BINARY = pa.large_binary()
X = {"dtype": "int64", "shape": "[2]"}
VALUE = pa.array([bytes(16)], BINARY)
LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def two_columns_of_one() -> bytes:
    """A stream whose schema has one column, and whose batch two."""
    fields, sink = [("x", BINARY, X), ("y", BINARY, X)], pa.BufferOutputStream()
    one, two = (pa.ipc.open_stream(stream_of(fields[:n], [VALUE] * n, HEADER)) for n in (1, 2))
    sink.write(one.schema.serialize())
    sink.write(two.read_next_batch().serialize())
    return sink.getvalue().to_pybytes()


WRONG = {
    "empty": (b"", "no valid Arrow stream"),
    "text": (b"GET / HTTP/1.1\r\n\r\n", "no valid Arrow stream"),
    "zeros": (bytes(1000), "no valid Arrow stream"),
    "pickle": (pickle.dumps({"x": torch.ones(3).numpy()}), "no valid Arrow stream"),
    "compressed": (one_column(options=LZ4), "compressed"),
    "two batches": (one_column(batches=2), r"types \['schema', 'record batch', 'record batch'\], expected were"),
    "no batch": (one_column(batches=0), r"types \['schema'\], expected were \['schema', 'record batch'\]"),
    "no header": (stream_of([("x", BINARY, X)], [VALUE], None), "not one header"),
    "other header": (stream_of([("x", BINARY, X)], [VALUE], {**HEADER, "pandas": "{}"}), "not one header"),
    "int column": (stream_of([("x", pa.int64(), X)], [pa.array([1])], HEADER), "'x' is of the type 'int64'"),
    "list column": (stream_of([("x", pa.list_(BINARY), X)], [pa.array([[b"x"]], pa.list_(BINARY))], HEADER), "type"),
    "text column": (stream_of([("x", pa.large_utf8(), X)], [pa.array(["x"], pa.large_utf8())], HEADER), "large_str"),
    "null": (stream_of([("x", BINARY, X)], [pa.array([None], BINARY)], HEADER), "'x' has 0 bytes"),
    "two rows": (stream_of([("x", BINARY, X)], [pa.array([bytes(8)] * 2, BINARY)], HEADER), "'x' has 8 bytes"),
    "no rows": (stream_of([("x", BINARY, X)], [pa.array([], BINARY)], HEADER), "null values or several rows"),
    "one name": (stream_of([("x", BINARY, X)] * 2, [VALUE] * 2, HEADER), "two columns of one name"),
    "no dtype": (stream_of([("x", BINARY, {"shape": "[2]"})], [VALUE], HEADER), "not dtype and shape"),
    "more metadata": (stream_of([("x", BINARY, {**X, "a": "b"})], [VALUE], HEADER), "not dtype and shape"),
    "dtype": (one_column(dtype="qint8"), "'x' has the dtype 'qint8'; allowed are"),
    "dtype of torch": (one_column(dtype="Tensor"), "'x' has the dtype 'Tensor'"),
    "dtype bytes": (one_column(dtype="größe"), "'x': .*ascii"),
    "negative shape": (one_column(shape="[-2,-1]"), "allowed are up to 64 sizes"),
    "shape of floats": (one_column(shape="[2.0]"), "2.0.* allowed: integers"),
    "shape of bools": (one_column(shape="[true,2]"), "allowed are up to 64 sizes"),
    "shape no list": (one_column(shape="2"), "allowed are up to 64 sizes"),
    "many dims": (one_column(shape=str([1] * 65)), "allowed are up to 64 sizes"),
    "nested shape": (one_column(shape="[" * 1000), "'x'"),
    "huge shape": (one_column(shape=f"[{2**62},{2**62}]"), "int64 cannot count"),
    "huge empty shape": (one_column(shape=f"[0,{2**62},4]", data=b""), "int64 cannot count"),
    "too many bytes": (one_column(shape="[1000000]"), "tensors of 8000000 bytes; at most 1048576 are allowed"),
    "short": (one_column(data=bytes(15)), "'x' has 15 bytes; torch.int64 of shape \\[2\\] has 16"),
    "long": (one_column(data=bytes(17)), "'x' has 17 bytes"),
    "bool": (one_column(dtype="bool", data=b"\x01\x02"), "has the byte 2 as a bool"),
    "offsets": (lying_offsets(0, 2**40), f"'x' has {2**40} bytes"),
    "negative offsets": (lying_offsets(0, -1), "'x' has -1 bytes"),
    "offsets from the end": (lying_offsets(16, 0), "compressed, or has null values or several rows"),
    "offsets before": (lying_offsets(-16, 0), "compressed, or has null values or several rows"),
    "offsets of less": (lying_offsets(8, 16), "compressed, or has null values or several rows"),
    "a buffer more": (two_columns_of_one(), "found a batch of 64 bytes; its columns have 32"),
    "header NaN": (one_column(header=b'{"a": NaN}'), "no strict JSON.*NaN"),
    "header number": (one_column(header=b'{"a": ' + b"9" * 5000 + b"}"), "no strict JSON"),
    "header list": (one_column(header=b"[]"), "not an object"),
    "header nested": (one_column(header=b"[" * 100_000), "no strict JSON"),
    "header bytes": (one_column(header=b"\xff"), "no strict JSON"),
}  # fmt: skip


WRONG_IN_AN_ANSWER = {  # where a request is refused by what its batch has in its bytes, since Arrow does not read it
    "no batch": "'x' has 0 bytes; torch.int64 of shape \\[2\\] has 16",
    "null": "none of them null",
    "two rows": "batch of 2 rows",
    "no rows": "batch of 0 rows",
    "long": "'x' has 17 or more bytes",
    **dict.fromkeys(["offsets", "negative offsets", "offsets from the end", "offsets before"], "no valid Arrow batch"),
    "offsets of less": "'x' has 8 bytes",
}


@pytest.mark.parametrize("name", WRONG_IN_AN_ANSWER)
def test_what_is_wrong_in_an_answer_is_refused(name):
    with pa.ipc.open_stream(WRONG[name][0]) as reader, pytest.raises(BadMessage, match=WRONG_IN_AN_ANSWER[name]):
        from_batches("client", reader.schema, reader, LIMIT)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name):
    data, text = WRONG[name]
    with pytest.raises(BadMessage, match=text) as caught:
        read(data)
    assert str(caught.value).startswith("server: ")


def test_the_good_message_that_the_wrong_ones_differ_from_is_read():
    assert torch.equal(read(one_column()).tensors["x"], torch.zeros(2, dtype=torch.int64))


def test_a_stream_above_the_limit_is_not_looked_at():
    with pytest.raises(BadMessage, match="found 1001 bytes; at most 1000 are allowed"):
        read(bytes(1001), 1000)


def test_a_header_above_the_limit_is_not_parsed():
    large = stream_of([("x", BINARY, X)], [VALUE], {"datapipes": "[" * (MOST_HEADER_BYTES + 1)})
    with pa.ipc.open_stream(large) as reader, pytest.raises(BadMessage, match=r"header of 4194305 .* at most 4194304"):
        from_batches("client", reader.schema, reader, LIMIT)


def test_a_compressed_stream_is_refused_also_where_its_values_would_fit():
    bomb = one_column(shape="[1000000]", data=bytes(8_000_000), options=pa.ipc.IpcWriteOptions(compression="zstd"))
    assert len(bomb) < 10_000
    with pytest.raises(BadMessage, match="compressed"):
        read(bomb, 2**30)


class Evil:
    """Says when it is unpickled."""

    def __reduce__(self):
        return (exec, ("import sys; sys.unpickled_by_datapipes = True",))


def test_nothing_is_unpickled_whatever_the_metadata_say():
    evil = pickle.dumps(Evil())
    extension = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": evil}
    opaque = {"ARROW:extension:name": "arrow.opaque", "ARROW:extension:metadata": '{"type_name":"x","vendor_name":"y"}'}
    for about in ({**X, **extension}, extension, {**X, **opaque}):
        with pytest.raises(BadMessage):
            read(stream_of([("x", BINARY, about)], [VALUE], HEADER))
    with pytest.raises(BadMessage, match="not one header"):
        read(stream_of([("x", BINARY, X)], [VALUE], {**HEADER, **extension}))
    with pytest.raises(BadMessage, match="no strict JSON"):
        read(stream_of([("x", BINARY, X)], [VALUE], {"datapipes": evil}))
    for raw in (evil, b"\xff\xff\xff\xff" + evil):
        with pytest.raises(BadMessage):
            read(raw)
    found = read(one_column(dtype="uint8", shape=f"[{len(evil)}]", data=evil)).tensors["x"]  # bytes are bytes
    assert as_bytes(found) == evil
    assert not hasattr(sys, "unpickled_by_datapipes")
    pickle.load(io.BytesIO(evil))
    assert vars(sys).pop("unpickled_by_datapipes"), "the pickle does what the test looks for"


def batches_of(*pieces: bytes, schema=None) -> list:
    return [pa.RecordBatch.from_arrays([pa.array([each], BINARY)], schema=schema) for each in pieces]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((bytes(8), bytes(7)), "has 15 bytes"),
        ((bytes(8), bytes(8), bytes(1)), "has 17 or more bytes"),
        ((bytes(8), b"", bytes(8)), "a batch without a byte after others"),
        ((bytes(16), b""), "a batch without a byte after others"),
        ((), "has 0 bytes"),
    ],
    ids=["few", "many", "nothing", "nothing at the end", "none"],
)
def test_pieces_that_do_not_make_a_tensor(pieces, text):
    schema = pa.schema([pa.field("x", BINARY, metadata=X)], metadata=HEADER)
    with pytest.raises(BadMessage, match=text):
        from_batches("client", schema, batches_of(*pieces, schema=schema), LIMIT)


def test_a_message_is_refused_before_more_than_the_limit_is_read():
    schema, batches = to_batches("server", message_of({"x": torch.zeros(1000)}), 100)
    read_batches = iter(batches)
    with pytest.raises(BadMessage, match="tensors of 4000 bytes; at most 3999 are allowed"):
        from_batches("client", schema, read_batches, 3999)
    assert len(list(read_batches)) == 40


def test_the_bytes_of_a_message_do_not_change():
    """The form on the wire is part of the protocol: another one needs another version number."""
    data = to_bytes("client", message_of({"ids.0": torch.tensor([5, 2**40]), "m": torch.tensor([[True]])}, kind="x"))
    schema = pa.ipc.open_stream(data).schema
    assert {name.decode(): value.decode() for name, value in schema.metadata.items()} == {"datapipes": '{"kind":"x"}'}
    fields = [(field.name, str(field.type), field.nullable, field.metadata) for field in schema]
    assert fields == [
        ("ids.0", "large_binary", False, {b"dtype": b"int64", b"shape": b"[2]"}),
        ("m", "large_binary", False, {b"dtype": b"bool", b"shape": b"[1,1]"}),
    ]
    (batch,) = pa.ipc.open_stream(data)
    assert [each[0].as_py() for each in batch.columns] == [bytes.fromhex("05000000000000000000000000010000"), b"\x01"]
