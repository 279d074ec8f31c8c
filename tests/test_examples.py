"""The examples that need no data, and node classification on a small file made here: output and parts."""

import contextlib
import math
import os
import re
import runpy
import socket
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from amounts import ranked
from example_data import EXAMPLES, write_ring
from scripts import processes_with, run_program

import datapipes as dp


def output_of(name: str, *arguments: str, **how: bool) -> str:
    done = run_program(EXAMPLES / name, *arguments, folder=Path.cwd(), timeout_s=120, **how)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # none from another process either
    assert "leaked" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ranked(["shm", "mp"], 1))
def test_the_channel_example_receives_an_epoch_leaves_one_and_shows_the_producers_error(kind):
    output = output_of("channel.py", "--channel", kind)
    batches = re.findall(r"^epoch (\d+), batch (\d+): features \(256, 64\), mean (\d+)$", output, re.MULTILINE)
    assert [tuple(map(int, batch)) for batch in batches] == [
        *((0, index, index) for index in range(6)),
        *((1, index, index) for index in range(3)),
    ]
    ended, left, failed = (output.index(text) for text in ("epoch 0 has ended", "left epoch 1", "the producer sent"))
    assert ended < left < failed
    assert "ValueError('there is no data for epoch 2')" in output
    assert "in make_batch" in output[failed:]  # the traceback of the producer
    counts = dict(re.findall(r"^  (\w+) +(\S+)$", output[output.rindex("ValueError") :], re.MULTILINE))
    if kind == "shm":
        assert 11 <= int(counts["messages"]) <= 15  # the last four may be dropped before they are sent
        assert [counts[name] for name in ("dropped", "unread", "held", "deaths")] == ["4", "0", "0", "0"]
    else:
        assert counts == {}


def test_the_channel_example_refuses_an_unknown_channel(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["channel.py", "--channel", "pigeon"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "channel.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "'pigeon'" in capsys.readouterr().err


def test_node2vec_learns_from_walks():
    output = output_of("node2vec.py", "--epochs", "2", "--steps", "3")
    losses = [float(loss) for loss in re.findall(r"^epoch \d  loss (\d\.\d+)$", output, re.MULTILINE)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert re.search(r"^AUC of links 0\.\d{4}$", output, re.MULTILINE)


def write_ratings(path: Path, num_users: int, num_ratings: int) -> Path:
    """Write ratings, one a minute: the users of even ids are trusted by all, the others by nobody."""
    rows = [
        f"{k % 7},{7 + k * 5 % num_users},{(7 + k * 5 % num_users) % 2 * -6 + 3},{60 * k}" for k in range(num_ratings)
    ]
    path.write_text("\n".join(["from,to,feature,time", *rows]) + "\n", encoding="ascii")
    return path


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize(("tokens", "epochs"), [("ppr", 30), ("temporal", 6)])
@pytest.mark.parametrize("seed", ranked([0, 1, 2], 1))
def test_the_graph_transformer_learns_from_both_kinds_of_tokens(tmp_path, monkeypatch, capsys, tokens, epochs, seed):
    monkeypatch.syspath_prepend(EXAMPLES)
    path = write_ring(tmp_path / "ring.npz", 400)
    if tokens == "temporal":
        path = write_ratings(tmp_path / "soc-sign-bitcoinotc.csv", 24, 300)
    arguments = ["--tokens", tokens, "--data", str(path), "--epochs", str(epochs), "--seed", str(seed)]
    monkeypatch.setattr(sys, "argv", ["graph_transformer.py", *arguments])
    runpy.run_path(str(EXAMPLES / "graph_transformer.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert len(re.findall(r"^epoch \d+  validation auc \d\.\d{4}$", output, re.MULTILINE)) == epochs
    assert float(re.search(r"^test auc (\d\.\d{4})$", output, re.MULTILINE)[1]) > 0.9


def test_tokens_by_time_need_ratings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["--tokens", "temporal", "--data", str(write_ring(tmp_path / "ring.npz", 400))]
    monkeypatch.setattr(sys, "argv", ["graph_transformer.py", *arguments])
    with pytest.raises(SystemExit, match=r"^ring has no ratings with times\. Pass a file"):
        runpy.run_path(str(EXAMPLES / "graph_transformer.py"), run_name="__main__")


# Node classification.


@pytest.fixture
def training(monkeypatch):
    """The module examples/training.py."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import training

    return training


def test_node_classification_trains_on_a_file_and_prints_the_chosen_metric(tmp_path):
    path = write_ring(tmp_path / "ring.npz", 400)
    arguments = ["--data", str(path), "--workers", "0", "--epochs", "2", "--metric", "auc"]
    output = output_of("node_classification.py", *arguments)
    validation = re.findall(r"^epoch +\d+  loss .*  validation (\d\.\d{4})", output, re.MULTILINE)
    assert len(validation) == 2
    assert 0 <= float(re.search(r"^test auc (\d\.\d{4})$", output, re.MULTILINE)[1]) <= 1


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_node_classification_trains_on_features_stored_with_fewer_bits(tmp_path, monkeypatch, capsys, training, kind):
    path = write_ring(tmp_path / "ring.npz", 400)
    arguments = ["--data", str(path), "--workers", "0", "--epochs", "2", "--threads", "1", "--stored-as", kind]
    monkeypatch.setattr(sys, "argv", ["node_classification.py", *arguments])
    runpy.run_path(str(EXAMPLES / "node_classification.py"), run_name="__main__")
    assert re.search(r"^test accuracy \d\.\d{4}$", capsys.readouterr().out, re.MULTILINE)
    data = training.with_stored_features(dp.datasets.open(path), kind)
    feature = data.features["node", None, "feat"]
    assert (feature.stored_as, feature.dtype) == (getattr(torch, kind) if kind != "float32" else None, torch.float32)
    exact = training.with_stored_features(dp.datasets.open(path), "float32").features["node", None, "feat"]
    everything = torch.arange(400)
    torch.testing.assert_close(
        feature.read(everything), exact.read(everything), rtol=2**-11, atol=float(exact.tensor.abs().max()) / 254
    )


@pytest.mark.usefixtures("training")
def test_inference_layer_by_layer_equals_that_with_all_neighbors(tmp_path, monkeypatch, capsys):
    arguments = ["--nodes", "400", "--epochs", "3", "--batch-size", "96", "--folder", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["layerwise_inference.py", *arguments])
    for _ in range(2):  # builds the graph, then opens it
        runpy.run_path(str(EXAMPLES / "layerwise_inference.py"), run_name="__main__")
        output = capsys.readouterr().out
        assert re.findall(r"^computed layer-(\d).npy, 400 rows of (\d+)$", output, re.MULTILINE) == [
            *(("0", "32"), ("1", "32"), ("2", "4"))
        ]
        assert (
            float(re.search(r"^largest difference from all neighbors at once: (\S+)$", output, re.MULTILINE)[1]) < 1e-4
        )
        assert float(re.search(r"^accuracy (\S+)$", output, re.MULTILINE)[1]) > 0.5


def test_data_without_features_has_nothing_to_store_with_fewer_bits(training):
    data = replace(random_task(100, 10), features=dp.FeatureStore({}))
    with pytest.raises(ValueError, match=r"stored_as: random has no node feature 'feat' to store as int8"):
        training.with_stored_features(data, "int8")


def test_words_become_the_topics_in_which_they_differ_most(training):
    bags = torch.zeros(90, 6, dtype=torch.uint8)
    bags[:30, :2] = bags[30:60, 2:4] = bags[60:, 4:] = 1  # three kinds of texts
    topics = training.topics(bags, 3)
    assert (topics.shape, topics.dtype) == ((90, 3), torch.float32)
    assert torch.linalg.matrix_rank(topics) == 3
    assert topics[[0, 30, 60]].unique(dim=0).shape == (3, 3)


@pytest.mark.full
def test_training_starts_from_tf_records(tmp_path):
    ids = torch.arange(400)
    sections, sets = ids * 2 // 400, ids % 3
    words = torch.cat([sections[:, None], torch.arange(2, 27).repeat(400, 1)], dim=1)
    words[:, -1] = 40  # the number of words, which fills up a row
    nodes = {"id": ids, "words": words, "section": sections, "set": sets}
    dp.datasets.write_tf_records(tmp_path / "nodes", nodes, num_files=3)
    edges = {"source": (ids + 1) % 400, "destination": ids, "direction": ids % 2}
    dp.datasets.write_tf_records(tmp_path / "edges", edges, num_files=2, compress=True)
    output = output_of("from_tfrecords.py", "--files", str(tmp_path), "--epochs", "2", "--workers", "0")
    assert "loaded 400 nodes and 400 edges" in output
    graph = dp.CSCGraph.from_edge_index(torch.stack([edges["source"], ids]), num_nodes=400)
    assert f"digest {graph.digest()[:16]}, {int((sets == 0).sum())} training nodes" in output
    assert len(re.findall(r"^epoch +\d+  loss .*  validation \d\.\d{4}", output, re.MULTILINE)) == 2
    assert 0 <= float(re.search(r"^test accuracy (\d\.\d{4})$", output, re.MULTILINE)[1]) <= 1


# Training on parts; tests/soak/soak_launcher.py kills servers, and the launcher at any moment.


@pytest.mark.full
def test_two_ranks_train_on_two_parts_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("DATAPIPES_TEST", mark := str(uuid.uuid4()))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # also then the lines of two ranks do not mix
    path = write_ring(tmp_path / "ring.npz", 400)
    arguments = ["--data", str(path), "--method", "fennel", "--cache", "2KB"]
    output = output_of("launch_local.py", *arguments, "--", "--workers", "0", "--epochs", "2", fresh=True)
    assert len(re.findall(r"^epoch +\d  loss .*  validation \d\.\d{4}", output, re.MULTILINE)) == 2
    assert 0 <= float(re.search(r"^test accuracy (\d\.\d{4})$", output, re.MULTILINE)[1]) <= 1
    assert re.search(r"^ *dist_sample_neighbor: .*concurrency=8", output, re.MULTILINE)
    for rank in range(2):
        stats = re.search(rf"^rank {rank}: .*'cached': (\d+), 'asked': (\d+)", output, re.MULTILINE)
        assert min(map(int, stats.groups())) > 0
    assert processes_with(f"DATAPIPES_TEST={mark}") == []


def random_task(num_edges: int, num_labels: int, row_width: int = 100) -> dp.datasets.Dataset:
    edge_index = torch.randint(0, 6000, (2, num_edges), generator=torch.Generator().manual_seed(0))
    items = dp.ItemSet((torch.arange(num_labels), torch.zeros(num_labels, dtype=torch.int64)))
    graph = dp.CSCGraph.from_edge_index(edge_index, num_nodes=6000)
    features = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.zeros(6000, row_width))})
    return dp.datasets.Dataset("random", graph, features, items, items, items, 1, ("a",))


@pytest.mark.parametrize(
    ("num_edges", "num_labels", "hops", "epochs", "dropout"),
    [
        (60_000, 6000, 2, 100, 0.5),  # 1 + 10 + 100 nodes; 6 steps in an epoch
        (12_000, 6000, 4, 100, 1 - 0.5**0.5),  # 1 + 2 + 4 + 8 + 16; all layers drop as much as 2 do
        (0, 6000, 5, 100, 1 - 0.5**0.4),
        (12_000, 140, 2, 48, 0.7),  # few labels; 5 steps of 32
    ],
)
def test_settings_come_from_the_numbers_of_labels_and_neighbors(training, num_edges, num_labels, hops, epochs, dropout):
    settings = training.settings_for(random_task(num_edges, num_labels))
    assert (settings.fanouts, settings.epochs) == ((10,) * hops, epochs)
    assert settings.dropout == pytest.approx(dropout)


@pytest.mark.parametrize(("row_width", "feature_dropout"), [(7, 0.0), (100, 0.1)])
def test_rows_of_few_numbers_are_not_dropped(training, row_width, feature_dropout):
    assert training.settings_for(random_task(60_000, 6000, row_width)).feature_dropout == feature_dropout


@pytest.mark.parametrize("num_directions", [1, 2])
def test_without_an_own_map_a_node_is_one_more_of_its_neighbors(training, num_directions):
    from graphsage import SAGELayer

    # Node 0 has in-edges from nodes 1 and 2, node 1 none; with two directions, 1 -> 0 has both and 2 -> 0 the second.
    block = dp.Block(torch.tensor([0, 2, 2]), torch.tensor([1, 2]), num_src=3)
    bits = torch.tensor([3, 2], dtype=torch.uint8) if num_directions == 2 else None
    layer = SAGELayer(4, 3, num_directions, own_map=False)
    h = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    means = [torch.stack([h.mean(0), h[1]])]
    if num_directions == 2:
        means.insert(0, torch.stack([h[:2].mean(0), h[1]]))
    expected = sum(linear(mean) for linear, mean in zip(layer.neighbors, means, strict=True))
    assert torch.allclose(layer(block, h, bits), expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_equals_the_share_of_pairs_in_the_right_order(training, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (30, 2), generator=rng).float()
    labels = torch.arange(30) % 3 // 2
    margin = scores[:, 1] - scores[:, 0]
    apart = margin[labels == 1][:, None] - margin[labels == 0]
    expected = (apart > 0).double().mean() + (apart == 0).double().mean() / 2
    assert training.roc_auc(scores, labels) == pytest.approx(float(expected))
    assert training.roc_auc(labels[:, None] * torch.tensor([-1.0, 1.0]), labels) == 1


def test_roc_auc_is_refused_for_three_classes(training):
    with pytest.raises(ValueError, match="3 classes, must be 2"):
        training.roc_auc(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))


def test_features_count_as_much_in_rows_of_small_numbers(training, tmp_path):
    path = write_ring(tmp_path / "ring.npz", 400)
    outputs = []
    for normalize in (False, True):  # rows of 100 ones, or of 100 hundredths
        data = dp.datasets.open(path, normalize_features=normalize)
        torch.manual_seed(0)
        model = training.make_model(data, training.settings_for(data)).eval()
        pipe = training.pipeline(data, data.test_set, [10, 10], 8, shuffle=False)
        outputs.append(training.scores(model, next(iter(pipe))))
    spread = outputs[0].std(0).mean()
    assert (outputs[0] - outputs[1]).abs().mean() < 0.2 * spread


# A grid of samplers and fanouts.


@pytest.mark.parametrize("buckets", [1, 2])
def test_a_step_is_captured_or_compiled_once_for_each_bucket(monkeypatch, capsys, buckets):
    arguments = ["--nodes", "4000", "--epochs", "3", "--buckets", str(buckets), "--backend", "eager"]
    monkeypatch.setattr(sys, "argv", ["captured_step.py", *arguments])
    runpy.run_path(str(EXAMPLES / "captured_step.py"), run_name="__main__")
    output = capsys.readouterr().out
    times = (buckets, 0) if torch.cuda.is_available() else (0, buckets)
    assert f"captured {times[0]} times, compiled {times[1]} times" in output
    assert float(re.search(r"^test accuracy (\d\.\d{4})$", output, re.MULTILINE)[1]) > 0.6


@pytest.fixture
def swap_stages(monkeypatch):
    """The module examples/swap_stages.py."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import swap_stages

    return swap_stages


@pytest.mark.usefixtures("same_threads")
def test_a_grid_of_samplers_and_fanouts_gives_one_table_and_one_picture(tmp_path, monkeypatch, capsys, swap_stages):
    pytest.importorskip("matplotlib")
    path, picture = write_ring(tmp_path / "ring.npz", 400), tmp_path / "grid.png"
    arguments = ["--data", str(path), "--epochs", "1", "--fanouts", "1", "4", "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", ["swap_stages.py", *arguments])
    swap_stages.main()
    output = capsys.readouterr().out
    assert "temporal is left out: ring has no node feature 'node_year'" in output
    rows = [line.split() for line in output[output.index("sampler ") :].splitlines()[1:] if line.count(".") == 5]
    expected = [(name, fanout) for name in swap_stages.SAMPLERS for fanout in ("1", "4")]
    expected = [of for of in expected if of[0] not in ("temporal", "in-subgraph")] + [("in-subgraph", "-1")]
    assert [tuple(row[:2]) for row in rows] == expected
    nodes = {(row[0], row[1]): int(row[2]) for row in rows}
    assert nodes["neighbor", "1"] < nodes["neighbor", "4"] == nodes["labor", "4"]  # a node has 4 in-edges at most
    assert all(0 <= float(accuracy) <= 1 for row in rows for accuracy in row[-2:])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_a_plot_is_refused_before_anything_is_trained(monkeypatch, swap_stages):
    monkeypatch.setattr(swap_stages, "find_spec", lambda _: None)
    monkeypatch.setattr(swap_stages.dp.datasets, "debian_packages", lambda: pytest.fail("data was read"))
    monkeypatch.setattr(sys, "argv", ["swap_stages.py", "--plot", "grid.png"])
    with pytest.raises(SystemExit, match=r"--plot needs matplotlib: pip install matplotlib;"):
        swap_stages.main()


@pytest.mark.parametrize(("argument", "value"), [("--epochs", "0"), ("--plot", "no/such/folder/grid.png")])
def test_a_grid_that_cannot_work_is_refused_at_once(argument, value, monkeypatch, capsys, swap_stages):
    monkeypatch.setattr(sys, "argv", ["swap_stages.py", argument, value])
    with pytest.raises(SystemExit):
        swap_stages.main()
    assert f"error: {argument}" in capsys.readouterr().err


def test_a_data_set_without_validation_nodes_has_no_accuracy_on_them(swap_stages):
    data = random_task(600, 300)
    empty = torch.zeros(0, dtype=torch.int64)
    data = replace(data, validation_set=dp.ItemSet((empty, empty)))
    settings = swap_stages.Settings(fanouts=(3, 3), batch_size=50, epochs=1)
    _, _, validation, test = swap_stages.train(data, swap_stages.chain_of(data, settings, "neighbor", 0), settings, 0)
    assert math.isnan(validation)
    assert 0 <= test <= 1


def test_weights_fall_with_the_out_edges_of_the_source_and_years_come_from_a_feature(swap_stages):
    data = random_task(4000, 300)
    years = torch.arange(6000) % 7 + 2000
    features = dp.FeatureStore({**data.features, ("node", None, "node_year"): dp.TensorFeature(years)})
    data = swap_stages.with_years(swap_stages.with_weights(replace(data, features=features)), "node_year")
    out_edges = torch.bincount(data.graph.indices, minlength=6000)
    assert data.graph.edge_attributes["weight"].equal(1 / out_edges[data.graph.indices].float())
    assert data.graph.digest() == random_task(4000, 300).graph.digest()
    items = data.train_set.take(torch.arange(300))
    assert items["timestamps"].equal(years[items["seeds"]])
    chain = swap_stages.chain_of(data, swap_stages.Settings(fanouts=(3, 3), batch_size=50), "temporal", seed=0)
    for minibatch in chain:
        block = minibatch.blocks[-1]
        ends = years[minibatch.input_nodes[block.edge_index]]
        assert (ends[0] <= ends[1]).all()  # of the hop next to the seeds


# Sampling as a service.


@pytest.mark.full
def test_two_trainers_learn_from_two_servers(tmp_path):
    path = write_ring(tmp_path / "ring.npz", 800)
    places = ["--seeds", str(tmp_path / "seeds.pt"), "--namebook", str(tmp_path / "book.json")]
    with contextlib.ExitStack() as running:
        for rank in range(2):
            command = [sys.executable, EXAMPLES / "serving" / "serve.py", "--data", path, *places, "--rank", str(rank)]
            server = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            running.callback(server.terminate)
            assert "listens on" in server.stdout.readline()
        module = ["-W", "ignore", "-m", "torch.distributed.run"]
        torchrun = [sys.executable, *module, "--standalone", "--nproc-per-node", "2"]
        trainer = [EXAMPLES / "serving" / "train.py", *places, "--epochs", "3", "--batch-size", "64"]
        done = subprocess.run([*torchrun, *trainer], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found = re.findall(r"^epoch +\d+  loss \d+\.\d+  validation (\d\.\d{4})$", done.stdout, re.MULTILINE)
        assert len(found) == 3
        assert "server 0 at 127.0.0.1:" in done.stdout


@pytest.mark.full
def test_a_pool_samples_for_two_trainers(tmp_path):
    path = write_ring(tmp_path / "ring.npz", 800)
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
    common = ["--data", path, "--namebook", ",".join(f"{rank}=127.0.0.1:{port}" for rank, port in enumerate(ports))]
    script = [sys.executable, EXAMPLES / "sampler_pool.py"]
    pool = [*script, "sample", *common, "--epochs", "2", "--num-worker", "3", "--batch-size", "8"]
    trainers = [[*script, "train", *common, "--epochs", "2", "--num-sender", "3", "--rank", str(k)] for k in range(2)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as running:
        processes = [
            running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
            for command in [pool, *trainers]
        ]
        for each in processes:
            running.callback(each.kill)
        told = [each.communicate(timeout=120)[0] for each in processes]
        assert [each.returncode for each in processes] == [0, 0, 0]
    for text in told[1:]:
        assert len(re.findall(r"^epoch +\d  loss \d+\.\d+  validation \d\.\d+$", text, re.MULTILINE)) == 2
        assert "test accuracy" in text


# A database.


@pytest.mark.full
def test_a_database_in_relbenchs_folder_is_learned(tmp_path):
    found = [
        float(re.search(r"^test AUC (\S+)$", output_of("relbench_churn.py", *more), re.MULTILINE)[1])
        for more in (
            [],
            ["--workers", "2"],
        )
    ]
    assert found[0] == found[1]
    assert found[0] > 0.64
