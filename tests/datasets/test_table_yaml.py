"""A YAML with the arguments of from_tables, for `datasets.open` and for `datapipes convert`."""

import sqlite3

import pytest
import torch

import datapipes as dp
from datapipes.cli.main import main
from datapipes.datasets import DatasetFormatError

TEXT = """
tables: {people: people.csv, visits: visits.csv}
keys: {people: id}
links:
  visits: {person: people}
times: {visits: at}
labels: {people: y}
features: {people: {city: category}}
"""


def written(folder, text=TEXT):
    (folder / "people.csv").write_text("id,city,y\na,Ulm,1\nb,Bonn,0\n")
    (folder / "visits.csv").write_text("person,length,at\na,1.5,2024-01-01\nb,2,2024-01-02\nc,2,2024-01-02\na,1,\n")
    (folder / "shop.yaml").write_text(text)
    return folder / "shop.yaml"


def test_the_file_says_what_the_arguments_say(tmp_path):
    data = dp.datasets.open(written(tmp_path))
    assert (data.name, data.task) == ("shop", "node_classification")
    assert [rows.tolist() for rows in data.train_set.item_sets["people"][:]] == [[0, 1], [1, 0]]
    assert data.graph.node_attributes_of("visits")["time"].tolist() == [1_704_067_200, 1_704_153_600, 1_704_153_600]
    assert data.left_out["visits", "at"] == "rows without a value: 1"


def test_a_database_and_times_of_a_split(tmp_path):
    with sqlite3.connect(tmp_path / "shop.sqlite") as base:
        base.execute("CREATE TABLE sales(buyer TEXT, item TEXT, day TEXT)")
        base.executemany("INSERT INTO sales VALUES (?, ?, ?)", [("a", "x", f"2024-01-0{day}") for day in range(1, 7)])
    (tmp_path / "a.yml").write_text(
        "tables: shop.sqlite\nlinks: {sales: {buyer: user, item: item}}\nedges: [sales]\ntimes: {sales: day}\n"
        "split: [2024-01-03, '2024-01-04']\n"
    )
    data = dp.datasets.open(tmp_path / "a.yml")
    assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [3, 1, 2]


def test_convert_writes_the_graph(tmp_path, capsys):
    assert main(["convert", str(written(tmp_path)), str(tmp_path / "new" / "out")]) == 0
    (tmp_path / "new" / "out").rename(tmp_path / "out")
    (tmp_path / "new").rmdir()
    assert "visits.at: rows without a value: 1" in capsys.readouterr().out
    graph = dp.HeteroCSCGraph.open(tmp_path / "out")
    data = dp.datasets.open(tmp_path / "shop.yaml")
    assert graph.edge_types == data.graph.edge_types
    assert graph.node_attributes_of("people")["city"].tolist() == [0, 1]
    assert torch.equal(graph.node_attributes_of("visits")["time"], data.graph.node_attributes_of("visits")["time"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "people.csv", "shop.yaml", "visits.csv"]


@pytest.mark.parametrize("database", [False, True])
def test_build_writes_the_data_set(tmp_path, capsys, database):
    path = written(tmp_path)
    if database:
        path = tmp_path / "shop.sqlite"
        with sqlite3.connect(path) as base:
            base.execute("CREATE TABLE people(id INTEGER PRIMARY KEY, age REAL)")
            base.execute("CREATE TABLE visits(person INTEGER REFERENCES people(id))")
            base.executemany("INSERT INTO people VALUES (?, ?)", [(7, 31.0), (9, 40.0)])
            base.execute("INSERT INTO visits VALUES (9)")
    assert main(["build", str(tmp_path / "out"), "--tables", str(path)]) == 0
    data = dp.datasets.open(tmp_path / "out")
    assert capsys.readouterr().out == f"{tmp_path / 'out'} is the data set\n{data.describe()}\n"
    assert data.graph.digest() == dp.datasets.open(tmp_path / "shop.yaml").graph.digest() or database
    assert data.graph.edge_types == (("people", "rev_f2p_person", "visits"), ("visits", "f2p_person", "people"))


def test_what_such_a_file_may_not_say(tmp_path, refuses):
    for text in (
        "",
        "3",
        "keys: {a: b}",
        "tables: {}\ncolumns: 3",
        "tables: &a {x: 1}\nkeys: *a",
        "tables: nowhere.csv",
        "tables: " + "[" * 5000,
    ):
        refuses((DatasetFormatError, ValueError, OSError), dp.datasets.open, written(tmp_path, text))


@pytest.mark.parametrize("damage", ["people.csv", "shop.yaml"])
def test_a_damaged_file_leaves_no_folder(tmp_path, damage):
    path = written(tmp_path)
    (tmp_path / damage).write_bytes(b"\xff\xfe")
    assert main(["convert", str(path), str(tmp_path / "out")]) != 0
    assert not (tmp_path / "out").exists()
