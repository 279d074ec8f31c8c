"""RelBench's folders: the database, splits and tasks are those of relbench; chains over them see nothing too early."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from amounts import amount
from dist_graphs import in_parts
from pipelines import digests
from relbench_folders import NUM_CUSTOMERS, START, TASKS, TEST, database, labels, write_relbench

import datapipes as dp
from datapipes.datasets import DatasetFormatError

PARTS = {"train": "train_set", "val": "validation_set", "test": "test_set"}
DAY = 86_400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_relbench(tmp_path_factory.mktemp("relbench") / "rel-shop")


def seconds(column):
    return np.asarray(column).astype("datetime64[s]").astype(np.int64).tolist()


def rows_of(items):
    taken = items.take(torch.arange(len(items)))
    return {name: next(iter(rows.values())) for name, rows in taken.items()}


@pytest.mark.parametrize("task", TASKS)
def test_seeds_labels_and_times_are_those_of_the_files(folder, task):
    data = dp.datasets.from_tables(folder, task=task)
    for part, name in PARTS.items():
        table, rows = labels(task, part), rows_of(getattr(data, name))
        entity = "id" if task in ("pieces", "shop") else "customer"
        assert rows["seeds"].tolist() == table[entity].to_pylist()
        assert rows["timestamps"].tolist() == seconds(table["at" if entity == "id" else "timestamp"])
        if task == "next":
            lists = [[node for node in row if node >= 0] for row in rows["destinations"].tolist()]
            assert lists == table["product"].to_pylist()
        else:
            expected = np.array(table[task].to_pylist())
            assert np.array_equal(rows["labels"].numpy(), expected.astype(rows["labels"].numpy().dtype))
    assert data.tasks[0].metadata["name"] == task
    assert data.time_unit == "s"


def test_the_database_ends_at_the_test_time_and_lacks_what_a_task_must_not_see(folder):
    purchases = database()["purchases"]
    before = np.array(seconds(purchases["at"])) <= seconds([np.datetime64(START)])[0] + TEST * DAY
    data = dp.datasets.from_tables(folder, task="spent")
    assert data.graph.num_nodes_of("purchases") == before.sum() < len(before)
    names = {kind: data.features.names("node", kind) for kind in data.graph.node_types}
    assert names["customers"] == []
    assert "income" in dp.datasets.from_tables(folder, task="churn").features.names("node", "customers")
    of_rows = dp.datasets.from_tables(folder, task="pieces")
    assert of_rows.graph.num_nodes_of("purchases") == len(before)
    assert "pieces" not in of_rows.features.names("node", "purchases")
    every = dp.datasets.open(folder)
    assert [task.metadata["name"] for task in every.tasks] == sorted(TASKS)
    assert every.features.names("node", "purchases") == ["time"]
    assert every.left_out["customers", "income"] == "a task must not see it"


def test_rows_at_the_very_test_time_are_in_the_database(tmp_path):
    folder = write_relbench(tmp_path / "rel", tasks=())
    edge = np.datetime64(START, "ns") + np.timedelta64(TEST, "D")
    at = pa.array([edge - np.timedelta64(1, "ns"), edge, edge + np.timedelta64(1, "ns"), None], pa.timestamp("ns"))
    pa.parquet.write_table(pa.table({"customer": [0, 1, 2, 3], "at": at}), folder / "db" / "visits.parquet")
    data = dp.datasets.open(folder)
    assert data.graph.num_nodes_of("visits") == 2
    assert data.left_out["visits", "at"] == "rows without a value: 1; rows after 2024-03-21: 1"
    assert (data.task, len(data.train_set)) == ("all_nodes", 0)


def test_a_task_of_ones_own_takes_the_place_of_those_of_the_folder(folder):
    data = dp.datasets.from_tables(
        folder, labels={"purchases": "shop"}, task="churn", features={"purchases": {"pieces": "number"}}
    )
    assert [task.metadata["name"] for task in data.tasks] == ["node_classification"]
    assert len(rows_of(data.train_set)["labels"]) == round(0.7 * 301)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that relbench imports
@pytest.mark.parametrize("task", ["churn", "spent", "next", "pieces", "shop"])
def test_all_is_equal_to_relbench(folder, task):
    relbench = pytest.importorskip("relbench")
    from relbench.modeling.graph import make_pkey_fkey_graph
    from torch_frame import stype

    known = relbench.load_dataset(str(folder))
    described = known.load_task(task)
    of_rows = task in ("pieces", "shop")
    tables = described.get_db(upto_test_timestamp=not of_rows)
    numbers = {"customers": ["income"], "products": ["price"], "purchases": ["pieces", "shop"], "visits": ["length"]}
    kinds = {
        table: {name: stype.numerical for name in names if name in tables.table_dict[table].df}
        for table, names in numbers.items()
    }
    their_graph, _ = make_pkey_fkey_graph(tables, kinds)
    ours = dp.datasets.from_tables(folder, task=task)
    graph = dp.HeteroCSCGraph.from_pyg(their_graph)
    assert graph.edge_types == ours.graph.edge_types
    for edge_type in graph.edge_types:
        one, other = graph.relation(edge_type), ours.graph.relation(edge_type)
        assert torch.equal(one.indptr, other.indptr)
        assert torch.equal(one.indices, other.indices)
    for table in ("purchases", "visits"):
        assert torch.equal(their_graph[table].time, ours.graph.node_attributes_of(table)["time"])
    for table, names in kinds.items():
        if names:
            stored = their_graph[table].tf.feat_dict[stype.numerical]
            for place, name in enumerate(their_graph[table].tf.col_names_dict[stype.numerical]):
                feature = ours.features["node", table, name]
                assert torch.equal(stored[:, place], feature.read(torch.arange(feature.count)).float())
    for part, name in PARTS.items():
        table, rows = described.get_table(part, mask_input_cols=False).df, rows_of(getattr(ours, name))
        entity = "id" if of_rows else "customer"
        assert rows["seeds"].tolist() == table[entity].tolist()
        times = table["at" if of_rows else "timestamp"].astype("datetime64[ns]")
        assert rows["timestamps"].tolist() == (times.astype("int64") // 10**9).tolist()
        if task == "next":
            padded = [row.tolist() + [-1] * (rows["destinations"].shape[1] - len(row)) for row in table["product"]]
            assert rows["destinations"].tolist() == padded
        else:
            assert np.allclose(rows["labels"].numpy(), table[described.target_col].to_numpy())


@pytest.mark.parametrize("task", [None, "churn", "spent", "next", "pieces"])
def test_a_folder_that_is_written_has_the_same_graph_features_and_tasks(folder, task, tmp_path):
    expected = dp.datasets.from_tables(folder, task=task)
    written = dp.datasets.from_tables(folder, task=task, folder=tmp_path / "out")
    for data in (written, dp.datasets.open(tmp_path / "out")):
        assert data.describe() == expected.describe()
        assert data.graph.digest() == expected.graph.digest()
        for key in expected.features:
            assert torch.equal(data.features[key].read(torch.arange(8)), expected.features[key].read(torch.arange(8)))
        for one, other in zip(data.tasks, expected.tasks, strict=True):
            assert one.metadata == other.metadata
            for part in PARTS.values():
                assert getattr(one, part).digest() == getattr(other, part).digest()


# --- chains


def chain(data, shuffle=True):
    pipe = dp.ItemSampler(data.train_set, batch_size=32, shuffle=shuffle, seed=0)
    pipe = pipe.temporal_sample_neighbor(data.graph, [8, 4], node_time_attr="time", inclusive=True, disjoint=True)
    return pipe.fetch_feature(data.features, {"purchases": ["time"], "visits": ["time", "length"]})


def test_no_minibatch_sees_a_row_that_is_later_than_its_seed(folder):
    data, num_seeds, num_rows = dp.datasets.from_tables(folder, task="churn"), 0, 0
    pipe = chain(data)
    for epoch in range(amount(10_000, 600) // len(data.train_set) + 1):
        pipe.set_epoch(epoch)
        for minibatch in pipe:
            num_seeds += len(minibatch.seeds["customers"])
            for table in ("purchases", "visits"):
                seen = minibatch.node_features[table, "time"]
                assert (seen <= minibatch.timestamps["customers"][minibatch.batch[table]]).all()
                num_rows += len(seen)
    assert num_seeds >= amount(10_000, 600)
    assert num_rows > num_seeds


@pytest.mark.parametrize("num_workers", [1, 2])
def test_minibatches_are_equal_from_workers_and_after_a_resume(folder, num_workers):
    data = dp.datasets.from_tables(folder, task="next")
    expected = digests(chain(data))
    with dp.DataLoader(chain(data), num_workers=num_workers) as loader:
        minibatches = iter(loader)
        first = [next(minibatches).digest() for _ in range(2)]
        state = loader.state_dict()
    with dp.DataLoader(chain(data), num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert first + [minibatch.digest() for minibatch in loader] == expected


@pytest.mark.parametrize("num_parts", [1, 3])
def test_minibatches_are_equal_over_parts(folder, num_parts):
    data = dp.datasets.from_tables(folder, task="churn")
    owners = {kind: torch.arange(data.graph.num_nodes_of(kind)) * 7 % num_parts for kind in data.graph.node_types}
    parts = in_parts(data.graph, owners, num_parts, node_time_attr="time")
    whole, over_parts = (
        dp.ItemSampler(data.train_set, batch_size=32, seed=0).temporal_sample_neighbor(
            graph, [8, 4], node_time_attr="time", inclusive=True, disjoint=True
        )
        for graph in (data.graph, parts)
    )
    assert digests(over_parts) == digests(whole)


# --- what is wrong


def test_seeds_that_are_not_in_the_graph_are_left_out(folder, tmp_path):
    copy = write_relbench(tmp_path / "rel", tasks=("churn", "next"))
    table = labels("churn", "train")
    beyond = pa.array(np.append(np.asarray(table["customer"])[:-1], NUM_CUSTOMERS + 5))
    pa.parquet.write_table(table.set_column(1, "customer", beyond), copy / "tasks" / "churn" / "train.parquet")
    lists = labels("next", "val").slice(0, 3).set_column(2, "product", pa.array([[1, 99], [99], [2]]))
    pa.parquet.write_table(lists, copy / "tasks" / "next" / "val.parquet")
    churn = dp.datasets.from_tables(copy, task="churn")
    assert len(churn.train_set) == len(table) - 1
    assert churn.left_out["tasks/churn/train", "seeds"] == "rows whose seeds are not in the graph: 1"
    rows = rows_of(dp.datasets.from_tables(copy, task="next").validation_set)
    assert (rows["seeds"].tolist(), rows["destinations"].tolist()) == ([0, 2], [[1], [2]])


def test_rows_of_a_table_without_a_key_are_found_by_their_place_in_the_file(tmp_path):
    folder = write_relbench(tmp_path / "rel", tasks=())
    at = pa.array([np.datetime64(day, "s") for day in ("2024-04-01", "2024-01-01", "2024-01-02")], pa.timestamp("s"))
    pa.parquet.write_table(
        pa.table({"customer": [0, 1, 2], "v": [1, 2, 3], "at": at}), folder / "db" / "visits.parquet"
    )
    (folder / "tasks" / "lab").mkdir(parents=True)
    (folder / "tasks" / "lab" / "manifest.yaml").write_text(
        "kind: external\ntask_type: regression\nentity_table: visits\nentity_col: row\ntarget_col: y\n"
    )
    pa.parquet.write_table(
        pa.table({"row": [2, 1, 0], "y": [300.0, 200.0, 100.0]}), folder / "tasks" / "lab" / "train.parquet"
    )
    data = dp.datasets.open(folder)
    seeds, labels = data.train_set.item_sets["visits"][:]
    assert (data.features["node", "visits", "v"].read(seeds) * 100).tolist() == labels.tolist() == [300, 200]


@pytest.mark.parametrize("labels_of", [[0.5, 1.0], [-1, 1], [0, 10**7]])
def test_labels_that_are_no_classes_are_refused(tmp_path, labels_of):
    folder = write_relbench(tmp_path / "rel", tasks=("churn",))
    table = labels("churn", "train").slice(0, 2).set_column(2, "churn", pa.array(labels_of))
    pa.parquet.write_table(table, folder / "tasks" / "churn" / "train.parquet")
    with pytest.raises(DatasetFormatError, match="found the label"):
        dp.datasets.open(folder)


def test_what_a_folder_lacks_is_told(refuses, tmp_path):
    folder = write_relbench(tmp_path / "rel", tasks=("churn", "next"))
    manifests = {name: folder / name / "manifest.yaml" for name in ("", "tasks/churn", "tasks/next")}
    texts = {name: path.read_text() for name, path in manifests.items()}

    def changed(name, old, new):
        manifests[name].write_text(texts[name].replace(old, new))
        try:
            dp.datasets.from_tables(folder)
        finally:
            manifests[name].write_text(texts[name])

    for name, old, new in (
        ("", "val_timestamp", "valid_timestamp"),
        ("", "tables:", "tables: 3\nothers:"),
        ("", "pkey: id, time_col: at", "pkey: key, time_col: at"),
        ("", "name: rel-shop", "name: *alias"),
        ("", "customer: customers, product", "customer: clients, product"),
        ("tasks/churn", "entity_table: customers", "entity_table: clients"),
        ("tasks/churn", "target_col: churn", "target_col: [churn]"),
        ("tasks/churn", "entity_col: customer", "entity_col: client"),
        ("tasks/churn", "kind: forecast", "kind: guess"),
        ("tasks/churn", "task_type: binary_classification", "task_type: ranking"),
        ("tasks/churn", "time_col: timestamp", "time_col: when"),
        ("tasks/next", "dst_entity_col: product\n", ""),
        ("tasks/next", "dst_entity_col: product", "dst_entity_col: timestamp"),
        ("", "test_timestamp: '2024-03-21'", "test_timestamp: soon"),
        ("", "  visits:", "  ../visits:"),
    ):
        refuses((DatasetFormatError, ValueError), changed, name, old, new)
    refuses(ValueError, dp.datasets.from_tables, folder, task="ltv")
    refuses(ValueError, dp.datasets.from_tables, folder, split=("2024-01-01", "2024-01-02"))
    refuses(ValueError, dp.datasets.from_tables, {"t": {"x": [1]}}, task="churn")
    (folder / "db" / "visits.parquet").unlink()
    refuses((ValueError, OSError), dp.datasets.from_tables, folder)
