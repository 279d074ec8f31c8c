"""Tables of any source become the graph of the plain definition; columns become features without a look ahead."""

import contextlib
import datetime
import importlib.util
import json
import os
import pickle
import sqlite3

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from plain_tables import ARGUMENTS, plain_graph, random_tables

import datapipes as dp

PURCHASES = {"buyer": ["a", "b", "a"], "item": [7, 9, 7], "price": [1.5, 2.0, 3.0]}
HALVES = {"kind": lambda cells: [cell if cell < 65_536 else cell + 0.5 for cell in cells]}["kind"]
LINKS = {"purchases": {"buyer": "user", "item": "item"}}


def in_sqlite(tables, folder):
    kinds = {"name": "TEXT PRIMARY KEY", "id": "INTEGER PRIMARY KEY"}
    references = {"buyer": "REFERENCES customers(name)", "product": "REFERENCES products"}
    with contextlib.closing(sqlite3.connect(folder / "shop.sqlite")) as base:
        for table, columns in tables.items():
            named = [f"{name} {kinds.get(name, references.get(name, ''))}" for name in columns]
            base.execute(f"CREATE TABLE {table}({', '.join(named)})")
            marks = ", ".join("?" * len(columns))
            base.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*columns.values(), strict=True))
        base.commit()
    return folder / "shop.sqlite"


def in_duckdb(tables, folder):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(folder / "shop.duckdb") as base:
        for table, columns in tables.items():
            content = pa.table(columns)
            base.execute(f"CREATE TABLE {table} AS SELECT * FROM content")
            assert content.num_rows
    return folder / "shop.duckdb"


def in_files(suffix, write):
    def save(tables, folder):
        for table, columns in tables.items():
            write(pa.table(columns), folder / f"{table}{suffix}")
        return folder

    return save


SOURCES = {
    "dicts": lambda tables, folder: tables,
    "pandas": lambda tables, folder: {table: pd.DataFrame(columns) for table, columns in tables.items()},
    "arrow": lambda tables, folder: {table: pa.table(columns) for table, columns in tables.items()},
    "csv": in_files(".csv", pa.csv.write_csv),
    "parquet": in_files(".parquet", pa.parquet.write_table),
    "sqlite": in_sqlite,
    "duckdb": in_duckdb,
}
if importlib.util.find_spec("polars"):
    import polars

    SOURCES["polars"] = lambda tables, folder: {table: polars.DataFrame(cols) for table, cols in tables.items()}


def pairs_of(graph, edge_type):
    relation = graph.relation(edge_type)
    dst = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
    return sorted(zip(relation.edge_ids.tolist(), relation.indices.tolist(), dst.tolist(), strict=True))


def all_rows(data, *key):
    feature = data.features[key]
    return feature.read(torch.arange(feature.count))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("edges", [(), ("purchases",)], ids=["nodes", "edges"])
def test_the_graph_is_that_of_the_plain_definition(tmp_path, source, edges):
    tables, arguments = random_tables(3), {**ARGUMENTS, "edges": edges}
    if edges:  # two links
        arguments["links"] = {"purchases": {"buyer": "customers", "shop": "shops"}}
    if source == "sqlite":  # a key that is missing is an error there, and the rows are in the order of integer keys
        tables["products"] = dict(
            zip(("id", "price"), zip(*sorted(zip(*tables["products"].values(), strict=True)), strict=True), strict=True)
        )
    nodes, pairs, kept = plain_graph(tables, **arguments)
    data = dp.datasets.from_tables(SOURCES[source](tables, tmp_path), **arguments)
    assert {kind: list(names) for kind, names in data.node_names.items()} == nodes
    assert {kind: [(src, dst) for _, src, dst in pairs_of(data.graph, kind)] for kind in data.graph.edge_types} == pairs
    assert data.graph.num_nodes_of("customers") == len(kept["customers"])
    times = [row["day"] for row in kept["purchases"]]
    if edges:
        kind = ("customers", "purchases", "shops")
        assert all_rows(data, "edge", kind, "time").tolist() == times
        assert all_rows(data, "edge", kind, "pieces").tolist() == [row["pieces"] for row in kept["purchases"]]
        order = data.graph.relation(kind).edge_ids
        assert data.graph.relation(kind).edge_attributes["time"].tolist() == [times[i] for i in order.tolist()]
    else:
        assert data.graph.node_attributes_of("purchases")["time"].tolist() == times
        assert all_rows(data, "node", "purchases", "pieces").tolist() == [row["pieces"] for row in kept["purchases"]]
    ages = [row["age"] for row in kept["customers"]]
    assert all_rows(data, "node", "customers", "age").tolist() == [age or 0 for age in ages]
    assert all_rows(data, "node", "customers", "age_missing").tolist() == [age is None for age in ages]
    cities = data.metadata["node", "customers", "city"]["categories"]
    numbers = all_rows(data, "node", "customers", "city").tolist()
    assert [None if number < 0 else cities[number] for number in numbers] == [row["city"] for row in kept["customers"]]


@pytest.mark.parametrize("edges", [(), ("purchases",)], ids=["nodes", "edges"])
def test_a_folder_has_what_memory_has(tmp_path, edges, monkeypatch):
    arguments = {**ARGUMENTS, "edges": edges}
    if edges:
        arguments["links"] = {"purchases": {"buyer": "customers", "shop": "shops"}}
    tables, folder = random_tables(3), tmp_path / "out"
    expected = dp.datasets.from_tables(tables, **arguments)
    monkeypatch.setattr("datapipes.datasets.table_rows._AT_ONCE", 50)
    for data in (dp.datasets.from_tables(tables, folder=folder, **arguments), dp.datasets.open(folder)):
        assert data.describe() == expected.describe()
        assert data.graph.digest() == expected.graph.digest()
        assert data.training_graph.digest() == expected.training_graph.digest()
        assert {*data.features} == {*expected.features}
        for key in expected.features:
            assert torch.equal(all_rows(data, *key), all_rows(expected, *key))
        for name in ("train_set", "validation_set", "test_set"):
            assert getattr(data, name).digest() == getattr(expected, name).digest()
        assert {kind: [*names] for kind, names in data.node_names.items()} == {
            kind: [*names] for kind, names in expected.node_names.items()
        }
        names = data.node_names["customers"]
        assert names.numbers([*names][::-1]).tolist() == [*range(len(names))][::-1]
        assert [*data.metadata["node", "customers", "city"]["categories"]] == [
            *expected.metadata["node", "customers", "city"]["categories"]
        ]
        assert (data.left_out, data.time_unit, data.task) == (expected.left_out, "s", expected.task)


def test_the_graph_of_training_is_made_when_it_is_used(tmp_path):
    arguments = {"links": LINKS, "edges": "purchases", "times": {"purchases": "price"}}
    tables = {"purchases": {**PURCHASES, "price": [1, 2, 3]}}
    data = dp.datasets.from_tables(tables, folder=tmp_path / "out", **arguments)
    assert "training_graph" not in vars(data)
    copied = pickle.loads(pickle.dumps(dp.datasets.from_tables(tables, **arguments)))
    expected = data.graph.relation(("user", "purchases", "item")).edge_attributes["time"] <= 2
    for one in (data, copied):
        assert one.training_graph.num_edges["user", "purchases", "item"] == int(expected.sum()) == 2
        assert one.training_graph is one.training_graph
    with pytest.raises(AttributeError, match="Here: "):
        _ = data.val_set


def test_names_that_yaml_reads_otherwise_stay_in_a_folder(tmp_path):
    names = ["a\x85b", "x\x7f", "\ufeffy", "\u2028z", "😀"]
    tables = {"t\x85": {"k": [1, 2], **{name: [1.0, 2.0] for name in names}}}
    data = dp.datasets.from_tables(tables, links={"t\x85": {"k": "u"}}, folder=tmp_path / "out")
    assert data.features.names("node", "t\x85") == sorted(names)
    assert ("t\x85", "f2p_k", "u") in data.graph.edge_types


def test_what_cannot_be_read_again_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="more than one way"):
        dp.datasets.from_tables({"a:b": {"k": [1]}}, links={"a:b": {"k": "u"}}, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_was_changed_ends_in_typed_errors(tmp_path):
    folder = tmp_path / "out"
    dp.datasets.from_tables({"t😀": PURCHASES}, links={"t😀": LINKS["purchases"]}, edges="t😀", folder=folder)
    text = (folder / "tables.json").read_text()
    os.mkfifo(folder / "arrays" / "fifo.npy")
    facts = json.loads(text)
    names = facts["node_names"]
    np.save(folder / "arrays" / "fortran.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    empty = {"train_set": {}, "validation_set": {}, "test_set": {}}
    np.save(folder / "arrays" / "seeds.npy", np.array([0, 99]))
    for changed in (
        5,
        {**facts, "task": 5},
        {**facts, "more": 1},
        {**facts, "node_names": [["user", ["texts", "/etc/passwd", "../x"]]]},
        {**facts, "node_names": [["user", ["texts", "arrays/fifo.npy", "arrays/fifo.npy"]]]},
        {**facts, "node_names": [["user", ["words", *names[0][1][1:]]]]},
        {**facts, "node_names": [["user", [names[0][1][0], *names[0][1][:0:-1]]]]},
        {**facts, "facts": [[]]},
        {**facts, "cuts": ["a", "b"]},
        {**facts, "cuts": [1]},
        {**facts, "tasks": [[[], {}]]},
        {**facts, "facts": [[["node", "user", "none"], {"mean": 0.0}]]},
        {**facts, "num_classes": 5},
        {**facts, "num_classes": True, "class_names": ["a"]},
        {**facts, "class_names": [5], "num_classes": 1},
        {**facts, "time_unit": "years"},
        {**facts, "left_out": [[1, 2, 3]]},
        {**facts, "node_names": [["nobody", names[0][1]]]},
        {**facts, "node_names": [["user", ["uuids", *names[0][1][1:]]]]},
        {**facts, "tasks": [[{"num_classes": 10**8}, empty]]},
        {**facts, "tasks": [[{}, {**empty, "test_set": {"user": [["seeds", "arrays/seeds.npy"]]}}]]},
        {**facts, "tasks": [[{}, {**empty, "test_set": {"user": [["seeds", "arrays/fortran.npy"]]}}]]},
        {**facts, "facts": [[["node", "user", "x"], [1]]]},
        {**facts, "tasks": [[{}, {}]]},
        *({**facts, "tasks": [[{}, {"train_set": sets}]]} for sets in ([3], {"t": [["seeds", "x"]]}, {"t": [[]]})),
        "[" * 10**5,
        "PK",
    ):
        (folder / "tables.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
        with pytest.raises((ValueError, OSError)):
            dp.datasets.open(folder)
    (folder / "tables.json").write_text(text)
    assert [*dp.datasets.open(folder).node_names["user"]] == ["a", "b"]


def test_both_ends_of_one_type_are_numbered_source_before_destination():
    follows = {"who": ["b", "a", "c"], "whom": ["a", "d", "b"]}
    data = dp.datasets.from_tables(
        {"follows": follows}, links={"follows": {"who": "user", "whom": "user"}}, edges="follows"
    )
    assert list(data.node_names["user"]) == ["b", "a", "d", "c"]
    assert data.node_names["user"].numbers(["c", "b", "nobody"]).tolist() == [3, 0, -1]
    assert [pair[1:] for pair in pairs_of(data.graph, ("user", "follows", "user"))] == [(0, 1), (1, 2), (3, 0)]
    assert data.task == "link_prediction"
    assert data.train_set.item_sets["user", "follows", "user"][:].tolist() == [[0, 1], [1, 2], [3, 0]]


@pytest.mark.parametrize("links", [[], [None, None], ["x", None]])
@pytest.mark.parametrize("key", [["x", "y"], pd.Categorical(["x", "y"])], ids=["texts", "categories"])
def test_a_link_may_be_empty_and_a_key_categorical(links, key):
    tables = {"a": pd.DataFrame({"id": key}), "b": {"a": pa.array(links)}}
    data = dp.datasets.from_tables(tables, keys={"a": "id"}, links={"b": {"a": "a"}})
    assert data.graph.num_edges["b", "f2p_a", "a"] == links.count("x")


def test_edges_may_be_an_iterator():
    data = dp.datasets.from_tables({"purchases": PURCHASES}, links=LINKS, edges=iter(["purchases"]))
    assert data.graph.node_types == ("item", "user")


def test_a_numeric_column_named_time_is_no_time_of_the_rows():
    tables = {"d": {"id": [1, 2]}, "laps": {"d": [1, 2, 1], "time": [91, 92, 90]}}
    data = dp.datasets.from_tables(tables, keys={"d": "id"}, links={"laps": {"d": "d"}})
    assert data.graph.node_attributes_of("laps") == {}
    assert data.features.names("node", "laps") == ["time"]


def test_a_function_may_use_its_memory_again_and_return_tensors():
    memory = np.zeros(2**16, ">f4")

    def embed(cells):
        memory[: len(cells)] = cells
        return memory[: len(cells)]

    tables = {"t": {"x": list(range(2**16 + 2)), "y": [1.0] * (2**16 + 2)}}
    kinds = {"x": embed, "y": lambda cells: torch.tensor(cells, requires_grad=True)}
    data = dp.datasets.from_tables(tables, features={"t": kinds})
    assert data.features["node", "t", "x"].read(torch.tensor([0, 1, 2**16])).tolist() == [0, 1, 2**16]
    assert data.features["node", "t", "y"].dtype == torch.float32


def test_statistics_are_those_of_finite_numbers(tmp_path):
    tables = {"t": {"x": [1.0, float("inf"), 3.0], "k": [1, 1, 1]}}
    for folder in (None, tmp_path / "out"):
        data = dp.datasets.from_tables(tables, links={"t": {"k": "u"}}, folder=folder)
        assert data.metadata["node", "t", "x"] == {"mean": 2.0, "std": 1.0}


def test_categories_of_integers_are_classes_in_their_order():
    data = dp.datasets.from_tables({"t": {"y": pd.Categorical([10, 2, 10])}}, labels={"t": "y"})
    assert (data.class_names, data.train_set.item_sets["t"][:][1].tolist()) == (("2", "10"), [1, 0, 1])
    tables = {"t": {"y": pd.Categorical([1, 2])}, "u": {"y": pd.Categorical(["2", "1"])}}
    data = dp.datasets.from_tables({k: pd.DataFrame(v) for k, v in tables.items()}, labels={"t": "y", "u": "y"})
    assert data.class_names == ("1", "2")


def test_without_labelled_rows_the_split_is_not_by_time():
    tables = {
        "t": {"y": pa.array([], pa.int64()), "at": pa.array([], pa.int64())},
        "u": {"c": pd.Categorical(["a"]), "at": [5]},
    }
    tables["u"] = pd.DataFrame(tables["u"])
    data = dp.datasets.from_tables(tables, labels={"t": "y"}, times={"t": "at", "u": "at"})
    assert [*data.metadata["node", "u", "c"]["categories"]] == ["a"]


def test_what_was_left_out_is_counted():
    tables = {
        "users": {"id": ["a", "", "b"], "bio": ["x", "y", "z"]},
        "logins": {"user": ["a", "zz", None, "b"], "at": ["2024-01-01", "2024-01-02", "2024-01-03", ""]},
    }
    data = dp.datasets.from_tables(
        tables, keys={"users": "id"}, links={"logins": {"user": "users"}}, times={"logins": "at"}
    )
    assert data.left_out == {
        (
            "users",
            "bio",
        ): "it holds texts; name it in features to read it as a category, or as a link, a time or a label",
        ("users", "id"): "rows without a value: 1",
        ("logins", "at"): "rows without a value: 1",
        ("logins", "user"): "rows without a value: 1; values that are no key of users: 1",
    }
    assert "left out: users.id: rows without a value: 1" in data.describe()
    assert (data.graph.num_nodes_of("users"), data.graph.num_nodes_of("logins")) == (2, 3)


def test_ids_of_csv_files_are_texts_unless_all_are_numbers(tmp_path):
    def names(keys, links):
        (tmp_path / "k.csv").write_text("id\n" + "\n".join(keys) + "\n")
        (tmp_path / "l.csv").write_text("k,v\n" + "".join(f"{link},1\n" for link in links))
        data = dp.datasets.from_tables(
            {name: tmp_path / f"{name}.csv" for name in "kl"}, keys={"k": "id"}, links={"l": {"k": "k"}}
        )
        return [*data.node_names["k"]], data.graph.num_edges_of(("l", "f2p_k", "k"))

    assert names(["007", "7"], ["007", "7", "7", ""]) == (["007", "7"], 3)
    assert names(["7", "-3", "0"], ["7", "0", "007"]) == (["7", "-3", "0"], 2)
    assert names(["7", "-3", "0"], ["7", "0", "0"]) == ([7, -3, 0], 3)
    assert names(["7", "8"], ["7.0", "", "8.0"]) == ([7, 8], 2)  # as pandas writes integers where one is missing
    assert names(["a", "7"], ["7", "7"]) == (["a", "7"], 2)


def test_tables_of_which_no_column_is_read_are_counted(tmp_path):
    tables = {"t": {"note": ["a", "b", "c"]}, "empty": {"x": pa.array([], pa.int64())}}
    for source in ("dicts", "sqlite", "csv"):
        data = dp.datasets.from_tables(SOURCES[source](tables, tmp_path))
        assert data.graph.num_nodes == {"empty": 0, "t": 3}


def test_foreign_keys_that_refer_to_no_primary_key_are_told(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite")) as base:
        base.execute("CREATE TABLE c(id TEXT, x REAL)")
        base.execute("CREATE TABLE p(c TEXT REFERENCES c(id), d TEXT REFERENCES gone)")
        base.execute("INSERT INTO p VALUES ('a', 'b')")
        base.commit()
    left_out = dp.datasets.from_tables(tmp_path / "a.sqlite").left_out
    assert left_out["p", "c"] == "its foreign key refers to c.id, which is no primary key of one column"
    assert left_out["p", "d"].startswith("its foreign key refers to gone")


# --- times


@pytest.mark.parametrize(
    ("cells", "unit", "expected"),
    [
        (["1969-12-31", "2024-02-29T12:00:00.75"], "s", [-86400, 1_709_208_000]),
        (["2024-02-29 12:00+02:00", "2024-02-29T10:00:00Z"], "s", [1_709_200_800] * 2),
        ([datetime.date(1970, 1, 2)] * 2, "ms", [86_400_000] * 2),
        (pd.to_datetime(["1969-12-31 23:59:59.5", "1970-01-01 00:00:00.0"]), "s", [-1, 0]),
        (pd.to_datetime(["1970-01-01", "1970-01-02"]).tz_localize("Europe/Berlin"), "s", [-3600, 82_800]),
        (pd.to_datetime(["1970-01-01 00:00:01.000002", None]), "us", [1_000_002]),
        ([1.0, float("nan")], "s", [1]),
        ([5, -7], "ns", [5, -7]),
        (["1970-01-01T00:00:00.123456789"], "ns", [123_456_789]),
        (["1970-01-01T00:00:00.123456789Z"], "us", [123_456]),
    ],
    ids=["dates", "zones in text", "date", "rounds down", "zone", "finer unit", "floats", "integers", "ns", "cut"],
)
def test_times_are_int64_in_one_unit(cells, unit, expected):
    data = dp.datasets.from_tables({"t": pd.DataFrame({"at": cells})}, times={"t": "at"}, time_unit=unit)
    assert data.graph.node_attributes_of("t")["time"].tolist() == expected
    assert data.time_unit == unit


# --- columns


def test_columns_become_features_of_their_kind():
    table = {
        "flag": [True, False, None],
        "small": np.array([1, 2, 3], np.uint16),
        "wide": np.asfortranarray(np.arange(6.0).reshape(3, 2)),
        "vector": [[1.0, 2.0], None, [3.0, 4.0]],
        "kind": pd.Categorical(["x", "y", "x"]),
        "born": ["2000-01-01", "", "2001-01-01"],
        "text": ["ab", "c", None],
    }

    def lengths(cells):
        return [[len(cell or ""), 1] for cell in cells]

    kinds = {"born": "time", "text": lengths, **dict.fromkeys(["flag", "small", "wide", "vector"], "number")}
    data = dp.datasets.from_tables({"t": table}, features={"t": {**kinds, "kind": "category"}})
    read = {name: all_rows(data, "node", "t", name) for name in data.features.names("node", "t")}
    assert {name: rows.tolist() for name, rows in read.items()} == {
        "flag": [True, False, False],
        "flag_missing": [False, False, True],
        "small": [1, 2, 3],
        "wide": [[0, 1], [2, 3], [4, 5]],
        "vector": [[1, 2], [0, 0], [3, 4]],
        "vector_missing": [False, True, False],
        "kind": [0, 1, 0],
        "born": [946_684_800, 0, 978_307_200],
        "born_missing": [False, True, False],
        "text": [[2, 1], [1, 1], [0, 1]],
    }
    assert read["wide"].dtype == read["vector"].dtype == torch.float32
    assert read["small"].dtype == torch.int32


def test_vocabularies_and_statistics_do_not_look_past_the_last_time_of_training():
    table = {"at": [4, 1, 3, 2], "kind": ["late", "b", "a", "b"], "value": [100.0, 1.0, 2.0, 6.0], "y": [0, 1, 1, 0]}
    data = dp.datasets.from_tables(
        {"t": table}, times={"t": "at"}, labels={"t": "y"}, split=(3, 3), features={"t": ["kind", "value"]}
    )
    assert all_rows(data, "node", "t", "kind").tolist() == [-1, 0, 1, 0]
    assert list(data.metadata["node", "t", "kind"]["categories"]) == ["b", "a"]
    assert data.metadata["node", "t", "kind"]["categories"].numbers(["a", "late"]).tolist() == [1, -1]
    assert data.metadata["node", "t", "value"]["mean"] == 3.0
    assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [3, 0, 1]


def test_columns_do_not_depend_on_batches(monkeypatch):
    tables = random_tables(5)
    whole = dp.datasets.from_tables(tables, **ARGUMENTS)
    for module, size in (("datasets.table_rows", 7), ("ingest.pieces", 11)):
        monkeypatch.setattr(f"datapipes.{module}._AT_ONCE", size)
    parts = dp.datasets.from_tables(tables, **ARGUMENTS)
    assert parts.features.keys() == whole.features.keys()
    for key in whole.features:
        assert torch.equal(all_rows(parts, *key), all_rows(whole, *key))
    assert whole.graph.digest() == parts.graph.digest()


def test_categories_and_means_of_a_split_by_a_column_are_those_of_its_training_rows():
    table = {
        "s": ["train", "train", "test", ""],
        "x": [1.0, 2.0, 300.0, 9.0],
        "k": ["a", "b", "c", "a"],
        "y": [0, 1, 0, 1],
    }
    visits = {"t": [0, 1], "at": [1, 7], "z": [1.0, 3.0]}
    data = dp.datasets.from_tables(
        {"t": {**table, "id": range(4), "at": [1, 2, 9, 3]}, "visits": visits},
        keys={"t": "id"},
        links={"visits": {"t": "t"}},
        times={"t": "at", "visits": "at"},
        labels={"t": "y"},
        split={"t": "s"},
        features={"t": ["x", "k"]},
    )
    assert data.metadata["node", "t", "x"]["mean"] == 1.5
    assert [*data.metadata["node", "t", "k"]["categories"]] == ["a", "b"]
    assert data.metadata["node", "visits", "z"]["mean"] == 1.0  # of rows up to time 2, the last of training


def test_a_column_without_values_keeps_its_kind():
    table = pa.table(
        {"when": pa.nulls(2, pa.timestamp("s")), "flag": pa.nulls(2, pa.bool_()), "n": pa.nulls(2, pa.int32())}
    )
    data = dp.datasets.from_tables({"t": table})
    dtypes = {name: data.features["node", "t", name].dtype for name in ("when", "flag", "n")}
    assert dtypes == {"when": torch.int64, "flag": torch.bool, "n": torch.int32}


def test_an_empty_text_of_a_categorical_is_missing():
    table = {"k": pd.Categorical(["a", "", "b"]), "v": [1, 2, 3]}
    data = dp.datasets.from_tables({"t": table}, links={"t": {"k": "kind"}})
    assert [*data.node_names["kind"]] == ["a", "b"]


def test_names_in_sql_are_compared_without_case(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite")) as base:
        base.execute("CREATE TABLE users(id INTEGER PRIMARY KEY, rowid TEXT)")
        base.execute("CREATE TABLE posts(author INTEGER REFERENCES Users(ID))")
        base.executemany("INSERT INTO users VALUES (?, ?)", [(9, "a"), (3, "c"), (5, "b")])
        base.execute("INSERT INTO posts VALUES (5)")
        base.commit()
    data = dp.datasets.from_tables(tmp_path / "a.sqlite")
    assert [*data.node_names["users"]] == [3, 5, 9]
    assert pairs_of(data.graph, ("posts", "f2p_author", "users")) == [(0, 0, 1)]


def test_names_can_be_pickled_and_copied():
    data = dp.datasets.from_tables(random_tables(2), **ARGUMENTS)
    copy_of = pickle.loads(pickle.dumps(data))
    assert [*copy_of.node_names["shops"]] == [*data.node_names["shops"]]
    assert copy_of.node_names["products"].numbers([data.node_names["products"][3]]).tolist() == [3]


# --- tasks


def test_the_split_by_time_counts_rows_with_labels():
    table = {"y": pa.array([None] * 70 + [0, 1] * 15, pa.int64()), "at": range(100)}
    data = dp.datasets.from_tables({"t": pa.table(table)}, labels={"t": "y"}, times={"t": "at"})
    assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [21, 5, 4]


@pytest.mark.parametrize(
    ("cells", "labels", "classes", "task"),
    [
        ([2, None, 0, 1], [2, 0, 1], ("0", "1", "2"), "node_classification"),
        ([True, None, False, True], [1, 0, 1], ("0", "1"), "node_classification"),
        (["no", None, "yes", "no"], [0, 1, 0], ("no", "yes"), "node_classification"),
        ([0.5, None, -2.0, 1.0], [0.5, -2.0, 1.0], (), "node_regression"),
    ],
    ids=["integers", "booleans", "texts", "floats"],
)
def test_labels_are_classes_or_values(cells, labels, classes, task):
    data = dp.datasets.from_tables({"t": pa.table({"y": cells, "x": [1, 2, 3, 4]})}, labels={"t": "y"})
    seeds, found = data.train_set.item_sets["t"][:]
    assert (seeds.tolist(), found.tolist()) == ([0, 2, 3], labels)
    assert (data.class_names, data.num_classes, data.task) == (classes, len(classes), task)
    assert [*data.features] == [("node", "t", "x")]  # the label is no feature


def test_the_split_is_a_column_or_by_time():
    table = {"y": [0, 1, 0, 1, 0], "part": ["test", "train", "valid", None, "train"], "at": [5, 4, 3, 2, 1]}
    by_column = dp.datasets.from_tables({"t": table}, labels={"t": "y"}, split={"t": "part"})
    sets = (by_column.train_set, by_column.validation_set, by_column.test_set)
    assert [part.item_sets["t"][:][0].tolist() for part in sets] == [[1, 4], [2], [0]]
    by_time = dp.datasets.from_tables({"t": table}, labels={"t": "y"}, times={"t": "at"}, split=(2, 4))
    sets = (by_time.train_set, by_time.validation_set, by_time.test_set)
    assert [part.item_sets["t"][:][0].tolist() for part in sets] == [[3, 4], [1, 2], [0]]
    assert by_time.train_set.item_sets["t"].take(torch.arange(2))["timestamps"].tolist() == [2, 1]


def test_labels_of_edges():
    table = {**PURCHASES, "rating": [1.0, 5.0, 3.0]}
    data = dp.datasets.from_tables(
        {"purchases": table}, links=LINKS, edges=["purchases"], labels={"purchases": "rating"}
    )
    seeds, labels = data.train_set.item_sets["user", "purchases", "item"][:]
    assert (seeds.tolist(), labels.tolist(), data.task) == ([[0, 0], [1, 1], [0, 0]], [1, 5, 3], "edge_regression")


def test_a_chain_samples_tables_without_a_leak():
    data = dp.datasets.from_tables(random_tables(1, num_purchases=2000), **ARGUMENTS)
    times = data.graph.node_attributes_of("purchases")["time"]
    items = dp.HeteroItemSet({"customers": dp.ItemSet((torch.arange(30), times[:30].clone()), ("seeds", "timestamps"))})
    pipe = dp.ItemSampler(items, batch_size=8).temporal_sample_neighbor(
        data.graph, [8, 4], node_time_attr="time", inclusive=True, disjoint=True
    )
    pipe = pipe.fetch_feature(data.features, {"purchases": ["time", "pieces"], "customers": ["age"]})
    num_seen = 0
    for minibatch in pipe:
        seen = minibatch.node_features["purchases", "time"]
        assert (seen <= minibatch.timestamps["customers"][minibatch.batch["purchases"]]).all()
        num_seen += len(seen)
    assert num_seen > 100


# --- refusals


def test_what_does_not_fit_is_refused_by_name(refuses, tmp_path):
    (tmp_path / "no.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.csv").write_bytes("a\nJürg\n".encode("latin-1"))
    mixed = in_sqlite({"t": {"x": [1, "a"]}}, tmp_path)
    users = {"users": {"id": [1, 2]}}

    def call(tables, **arguments):
        return dp.datasets.from_tables(tables, **arguments)

    for wrong, tables, arguments in (
        (TypeError, 7, {}),
        (TypeError, {3: {}}, {}),
        (ValueError, {}, {}),
        (ValueError, tmp_path / "empty", {}),
        (FileNotFoundError, {"t": "nowhere.csv"}, {}),
        (ValueError, tmp_path / "no.sqlite", {}),
        (ValueError, mixed, {}),
        (ValueError, {"t": {"a": [1, 2], "b": [1]}}, {}),
        (ValueError, {"t": 5}, {}),
        (ValueError, users, {"keys": {"user": "id"}}),
        (ValueError, users, {"keys": {"users": "name"}}),
        (TypeError, users, {"times": "id"}),
        (TypeError, users, {"links": {"users": "id"}}),
        (ValueError, users, {"links": {"users": {"id": "users"}}}),
        (ValueError, users, {"edges": ["users"]}),
        (
            ValueError,
            {"t": {"a": [1], "b": [1]}},
            {"links": {"t": {"a": "x", "b": "t"}}, "keys": {"t": "a"}, "edges": "t"},
        ),
        (TypeError, users, {"features": {"users": "id"}}),
        (ValueError, users, {"features": {"users": {"id": "numeric"}}}),
        (ValueError, users, {"times": {"users": "id"}, "features": {"users": {"time": "number"}}}),
        (ValueError, users, {"time_unit": "h"}),
        (ValueError, users, {"dangling": "keep"}),
        (ValueError, {"users": {"id": [1, 2, 1]}}, {"keys": {"users": "id"}}),
        (ValueError, {"users": {"id": [1.5]}}, {"keys": {"users": "id"}}),
        (ValueError, {"users": {"id": [datetime.date(2024, 1, 1)]}}, {"keys": {"users": "id"}}),
        (
            ValueError,
            {**users, "t": {"u": ["a"]}},
            {"keys": {"users": "id"}, "links": {"t": {"u": "users"}}},
        ),
        (
            ValueError,
            {**users, "t": {"u": [1, 3]}},
            {"keys": {"users": "id"}, "links": {"t": {"u": "users"}}, "dangling": "refuse"},
        ),
        (ValueError, {"t": {"at": ["2024-01-01", "soon"]}}, {"times": {"t": "at"}}),
        (ValueError, {"t": {"at": [True]}}, {"times": {"t": "at"}}),
        (ValueError, {"t": {"at": [0.5]}}, {"times": {"t": "at"}}),
        (ValueError, {"t": {"at": ["2400-01-01"]}}, {"times": {"t": "at"}, "time_unit": "ns"}),
        (ValueError, {"t": {"v": [[1], [1, 2]]}}, {}),
        (ValueError, {"t": {"v": [[1], [None]]}}, {}),
        (ValueError, {"t": {"v": [1.0, 1e300]}}, {}),
        (ValueError, {"t": {"v": np.array([1, 2**63], np.uint64)}}, {}),
        (ValueError, {"t": {"v": ["a"]}}, {"features": {"t": {"v": "number"}}}),
        (ValueError, {"t": {"v": ["a"]}}, {"features": {"t": {"v": lambda cells: 3}}}),
        (ValueError, {"t": {"v": [1, None], "v_missing": [1, 2]}}, {}),
        (ValueError, {"t": {"y": [[1]]}}, {"labels": {"t": "y"}}),
        (ValueError, {"t": {"y": [10**9]}}, {"labels": {"t": "y"}}),
        (ValueError, {"t": {"y": [-1, 1]}}, {"labels": {"t": "y"}}),
        (ValueError, {"t": {"y": [None, None]}}, {"labels": {"t": "y"}}),
        (ValueError, users, {"links": {"users": {"id": "user"}}}),
        (ValueError, tmp_path / "latin.csv", {}),
        (ValueError, {"t": {"v": list(range(70_000))}}, {"features": {"t": {"v": HALVES}}}),
        (ValueError, {"t": {"id": [2.0**53, 1.0]}}, {"keys": {"t": "id"}}),
        (ValueError, {"t": {"id": np.array([1, 2**24], np.float32)}}, {"keys": {"t": "id"}}),
        (ValueError, {"t": {"id": np.array([1, np.inf], np.float16)}}, {"keys": {"t": "id"}}),
        (ValueError, {"t": {"y": [1]}}, {"labels": {"t": "y"}, "features": {"t": ["y"]}}),
        (ValueError, {"t": {"s": ["train"]}}, {"split": {"t": "s"}}),
        (ValueError, {"t": {"x": [1]}}, {"folder": tmp_path / "out"}),
        (TypeError, users, {"edges": 5}),
        (
            ValueError,
            {name: {"a": [1], "b": [2]} for name in ("p", "rev_p")},
            {"links": {name: {"a": "u", "b": "u"} for name in ("p", "rev_p")}, "edges": ["p", "rev_p"]},
        ),
        (ValueError, {"t": {"y": [1]}, "u": {"y": ["a"]}}, {"labels": {"t": "y", "u": "y"}}),
        (
            ValueError,
            {"purchases": {**PURCHASES, "y": [1, 1, 1]}, "u": {"y": [1]}},
            {"links": LINKS, "edges": "purchases", "labels": {"purchases": "y", "u": "y"}},
        ),
        (ValueError, {"t": {"y": [1]}}, {"labels": {"t": "y"}, "split": (1, 2)}),
        (ValueError, {"t": {"y": [1], "at": [1]}}, {"labels": {"t": "y"}, "times": {"t": "at"}, "split": (2, 1)}),
        (ValueError, {"t": {"y": [1], "at": [1]}}, {"labels": {"t": "y"}, "times": {"t": "at"}, "split": 7}),
        (ValueError, {"t": {"y": [1], "s": ["dev"]}}, {"labels": {"t": "y"}, "split": {"t": "s"}}),
        (
            ValueError,
            {"t": {"y": [1] * 9, "s": ["train"] * 8 + ["x" * 2**16]}},
            {"labels": {"t": "y"}, "split": {"t": "s"}},
        ),
        (ValueError, {"t": {"y": [1], "at": [1]}}, {"labels": {"t": "y"}, "times": {"t": "at"}, "split": ("", 2)}),
        (ValueError, {"t": {"at": np.array([1_700_000_001], np.float32)}}, {"times": {"t": "at"}}),
        (ValueError, {"t": {"y": [f"l{i}" for i in range(70_000)]}}, {"labels": {"t": "y"}}),
        (ValueError, {"t": {"x": pa.array([[1.0, 1e300]])}}, {}),
        (ValueError, {"t": {"y": [1], "at": [1]}}, {"labels": {"t": "y"}, "times": {"t": "at"}, "split": (2**70, 2)}),
        (
            ValueError,
            {"t": {"v": ["a"]}},
            {"features": {"t": {"v": lambda cells: torch.zeros(1, dtype=torch.bfloat16)}}},
        ),
        (ValueError, {"t": {"x": pa.array([[[1.0, 2.0], [1.0]]])}}, {}),
        (ValueError, {"t": {"v": ["a"]}}, {"features": {"t": {"v": lambda cells: np.zeros(1, np.longdouble)}}}),
    ):
        refuses(wrong, call, tables, **arguments)
