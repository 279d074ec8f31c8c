"""The embedded heterogeneous graph: the maker (index to files) and the reader (files to data set)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import make_debian_packages as maker
import numpy as np
import pytest
import torch
from amounts import examples
from changed_bytes import CHANGES, changed
from hypothesis import given
from published import published

import datapipes as dp
from datapipes.datasets import debian
from datapipes.datasets.debian import RELATIONS_FILE, read_debian_packages, read_debian_relations
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.raw import DatasetFormatError

# Packages of the sources alpha, beta and eta; eta is in the test part, the others in train. Virtual names: "mta", which
# three packages name; "api", which two name; "lonely", which one alone names; "old", which nobody provides.
INDEX = """\
Package: alpha
Maintainer: A Person <a@example.org>
Section: mail
Tag: mail::transport, role::program
Description: alpha mail server
Depends: late | mta, gamma (>= 2), old
Pre-Depends: gamma
Recommends: late, alpha-doc,
 api
Conflicts: mta, alpha
Replaces: mta
Provides: mta, lonely
Built-Using: eta (= 1), nowhere (= 2), beta (= 3)

Package: alpha-doc
Source: alpha (1.2)
Section: doc
Description: alpha manual
Suggests: alpha, mta | old
Enhances: alpha
Static-Built-Using: beta (= 3)

Package: beta
Section: libs
Description: beta library
Breaks: alpha (<< 1), api
Replaces: alpha
Provides: api (= 1), late

Package: gamma
Source: eta
Section: libs
Description: gamma library
Pre-Depends: api
Enhances: mta
Suggests: mta

Package: late
Source: beta
Description: a package without a section
Depends: beta
"""
NAMES = {
    "package": ["alpha", "alpha-doc", "beta", "gamma", "late"],
    "source": ["alpha", "beta", "eta"],
    "virtual": ["api", "mta"],
}
SAID = {
    "package built_from source": "alpha>alpha alpha-doc>alpha beta>beta gamma>eta late>beta",
    "package built_using source": "alpha>beta alpha>eta alpha-doc>beta",
    "package depends package": "alpha>gamma alpha>late late>beta",
    "package depends virtual": "alpha>mta gamma>api",
    "package pre_depends package": "alpha>gamma",
    "package pre_depends virtual": "gamma>api",
    "package recommends package": "alpha>alpha-doc alpha>late",
    "package recommends virtual": "alpha>api",
    "package suggests package": "alpha-doc>alpha",
    "package suggests virtual": "alpha-doc>mta gamma>mta",
    "package enhances package": "alpha-doc>alpha",
    "package enhances virtual": "gamma>mta",
    "package breaks package": "beta>alpha",
    "package breaks virtual": "beta>api",
    "package conflicts package": "",  # alpha conflicts with itself
    "package conflicts virtual": "alpha>mta",
    "package replaces package": "beta>alpha",
    "package replaces virtual": "alpha>mta",
    "package provides package": "beta>late",
    "package provides virtual": "alpha>mta beta>api",
}
FORWARD = {tuple(text.split()): {tuple(pair.split(">")) for pair in said.split()} for text, said in SAID.items()}


def write(folder: Path, index: str = INDEX, **instead: np.ndarray) -> dict[str, np.ndarray]:
    """Write both files of `index` with some arrays of the second changed; return the arrays of the second."""
    packages = maker.read_packages(index.splitlines())
    maker.write_npz(folder / debian.FILE, maker.make_arrays(packages, min_descriptions=1))
    arrays = maker.make_relations(packages, (folder / debian.FILE).read_bytes())
    maker.write_npz(folder / RELATIONS_FILE, arrays | instead)
    return arrays


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Replace the embedded files by tiny ones; return their folder."""
    monkeypatch.setattr(debian, "files", lambda package: tmp_path)
    write(tmp_path)
    return tmp_path


def named(edge_type: tuple[str, str, str], edges: np.ndarray) -> list[tuple[str, str]]:
    src, _, dst = edge_type
    return [(NAMES[src][a], NAMES[dst][b]) for a, b in edges.T.tolist()]


# The maker and the reader, on a tiny index.


@pytest.mark.usefixtures("tiny")
def test_the_relations_are_what_the_stanzas_say():
    dataset = read_debian_relations()
    assert dataset.num_nodes == {node_type: len(names) for node_type, names in NAMES.items()}
    forward = {key: edges for key, edges in dataset.edges.items() if not key[1].startswith("rev_")}
    assert {key: set(named(key, edges)) for key, edges in forward.items()} == FORWARD
    for edges in forward.values():
        pairs = list(zip(edges[1].tolist(), edges[0].tolist(), strict=True))
        assert pairs == sorted(set(pairs))


@pytest.mark.usefixtures("tiny")
def test_each_relation_has_its_inverse_with_the_same_edges_in_the_same_order():
    edges = read_debian_relations().edges
    assert len(edges) == 2 * len(FORWARD)
    for src, relation, dst in FORWARD:
        assert np.array_equal(edges[dst, f"rev_{relation}", src], edges[src, relation, dst][::-1])


@pytest.mark.usefixtures("tiny")
def test_packages_without_a_section_are_in_no_part():
    split = read_debian_relations().split
    seeds = np.sort(np.concatenate([part["package"].seeds for part in split]))
    assert [NAMES["package"][seed] for seed in seeds] == ["alpha", "alpha-doc", "beta", "gamma"]


@pytest.mark.parametrize(
    ("index", "names"),
    [
        ("Package: a\nProvides: v\n\nPackage: b\nDepends: v\n", ["v"]),
        ("Package: a\nProvides: v\n\nPackage: b\nProvides: v\n", ["v"]),
        ("Package: a\nProvides: v\nConflicts: v\n", []),  # one package names it, twice
        ("Package: a\nDepends: v\n\nPackage: b\nDepends: v\n", []),  # nobody provides it
        ("Package: a\nProvides: v\n\nPackage: b\nDepends: v\n\nPackage: v\n", []),  # it is a package
        ("Package: a\nProvides: v\n\nPackage: b\nBuilt-Using: v\n", []),  # Built-Using names sources
        ("Package: a\nProvides: w, v\n\nPackage: b\nBreaks: v | w\n", ["v", "w"]),
    ],
)
def test_a_virtual_name_is_provided_and_named_twice_and_no_package(index, names):
    assert maker.virtual_names(maker.read_packages(index.splitlines())) == names


def test_equal_indices_give_equal_bytes_of_both_files(tmp_path, capsys):
    (tmp_path / "Packages").write_text(INDEX)
    for run in ("one", "two"):
        outputs = [str(tmp_path / f"{run}-{name}.npz") for name in ("packages", "relations")]
        assert maker.main(["--packages", str(tmp_path / "Packages"), *outputs]) == 0
    for name in ("packages", "relations"):
        assert (tmp_path / f"one-{name}.npz").read_bytes() == (tmp_path / f"two-{name}.npz").read_bytes()
    assert "'suggests_virtual': 2" in capsys.readouterr().out
    with np.load(tmp_path / "one-packages.npz", allow_pickle=False) as arrays:
        assert arrays["release"] == maker.DEFAULT_RELEASE
        assert len(arrays["label"]) == len(NAMES["package"])


def test_relations_that_do_not_fit_are_refused(tiny, refuses):
    for instead in (
        {"format": np.array("another")},
        {"packages_digest": np.array("0" * 32)},
        {"source": np.array([0, 0, 1, 2])},
        {"source": np.array([0, 0, 1, 5, 1])},
        {"source": np.array([0, 0, 1, 3, 1])},
        {"source": np.array([0, 2, 1, 2, 1])},
        {"provides_virtual_ids": np.array(3)},
        {"provides_virtual_ids": np.array([1, 1])},
        {"suggests_virtual_ids": np.array([2, 0])},
        {"recommends_package_ids": np.array([4, 1])},
        {"recommends_package_degree": np.array([1, 0, 0, 0, 0])},
        {"built_using_ids": np.array([1, 3, 1])},
    ):
        write(tiny, **instead)
        refuses(DatasetFormatError, read_debian_relations)
    arrays = write(tiny)
    del arrays["breaks_virtual_degree"]
    maker.write_npz(tiny / RELATIONS_FILE, arrays)
    refuses(DatasetFormatError, read_debian_relations)
    packages = maker.read_packages(INDEX.replace("mail server", "server").splitlines())
    maker.write_npz(tiny / debian.FILE, maker.make_arrays(packages, min_descriptions=1))  # of another run
    refuses(DatasetFormatError, read_debian_relations)
    for direction in ("depends", "reverse", "in"):
        refuses(ValueError, dp.datasets.debian_packages, direction, heterogeneous=True)
    refuses(TypeError, dp.datasets.debian_packages, heterogeneous="yes")


FILES = [(debian.FILE, read_debian_packages), (RELATIONS_FILE, read_debian_relations)]


@pytest.mark.parametrize(("file", "read"), FILES)
@examples(100)
@given(changes=CHANGES)
def test_a_file_with_changed_bytes_is_refused_or_still_valid(tmp_path_factory, file, read, changes):
    folder = tmp_path_factory.mktemp("changed")
    write(folder)
    (folder / file).write_bytes(changed((folder / file).read_bytes(), changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debian, "files", lambda package: folder)
        try:
            num_nodes = read().num_nodes
        except DatasetFormatError:
            return
    num_packages = num_nodes if file == debian.FILE else num_nodes["package"]
    assert num_packages == len(NAMES["package"])


@pytest.mark.usefixtures("tiny")
def test_the_data_set_has_the_graph_the_features_and_the_task():
    raw, dataset = read_debian_relations(), dp.datasets.debian_packages(heterogeneous=True)
    assert dataset.graph.num_nodes == raw.num_nodes
    assert dataset.graph.edge_types == tuple(sorted(raw.edges))
    for edge_type, (sources, destinations) in raw.edges.items():
        relation = dataset.graph.relation(edge_type)
        columns = np.repeat(np.arange(len(relation.indptr) - 1), np.diff(relation.indptr.numpy()))
        found = sorted(zip(relation.indices.tolist(), columns.tolist(), strict=True))
        assert found == sorted(zip(sources.tolist(), destinations.tolist(), strict=True))
    for name in ("words", "feat"):
        rows = dataset.features["node", "package", name].read(torch.arange(len(NAMES["package"])))
        assert np.array_equal(rows, raw.node_features["package", name])
    for items, part in zip((dataset.train_set, dataset.validation_set, dataset.test_set), raw.split, strict=True):
        assert items.types == ("package",)
        taken = items.take(torch.arange(len(items)))
        assert taken["seeds"]["package"].tolist() == part["package"].seeds.tolist()
        assert taken["labels"]["package"].tolist() == part["package"].labels.tolist()


@pytest.mark.parametrize("direction", ["depends", "reverse", "in"])
def test_a_direction_of_a_graph_with_types_is_refused(direction):
    with pytest.raises(ValueError, match=f"direction='{direction}' is for heterogeneous=False.*a fanout of 0"):
        dp.datasets.debian_packages(direction, heterogeneous=True)


def test_heterogeneous_must_be_a_bool():
    with pytest.raises(TypeError, match="heterogeneous must be"):
        dp.datasets.debian_packages(heterogeneous="yes")


# The embedded files.


@pytest.fixture(scope="module")
def embedded():
    return read_debian_relations()


@pytest.fixture(scope="module")
def homogeneous():
    return read_debian_packages("reverse")


def test_packages_words_labels_and_split_are_those_of_the_homogeneous_graph(embedded, homogeneous):
    assert embedded.name == homogeneous.name
    assert embedded.class_names == homogeneous.class_names
    assert embedded.num_nodes["package"] == homogeneous.num_nodes
    assert set(embedded.node_features) == {("package", name) for name in homogeneous.node_features}
    for name, rows in homogeneous.node_features.items():
        assert embedded.node_features["package", name].dtype == rows.dtype
        assert np.array_equal(embedded.node_features["package", name], rows)
    for part, ids in zip(embedded.split, homogeneous.split, strict=True):
        assert set(part) == {"package"}
        assert np.array_equal(part["package"].seeds, ids)
        assert np.array_equal(part["package"].labels, homogeneous.labels[ids])


def test_depends_has_the_edges_of_the_homogeneous_graph(embedded, homogeneous):
    assert np.array_equal(embedded.edges["package", "depends", "package"], homogeneous.edge_index)
    assert np.array_equal(
        np.unique(embedded.edges["package", "rev_depends", "package"], axis=1),
        np.unique(read_debian_packages("depends").edge_index, axis=1),
    )


def test_the_embedded_relations_have_the_counts_that_are_documented(embedded):
    assert embedded.num_nodes == {"package": 63_436, "source": 34_169, "virtual": 5_268}
    counts = {key[1:]: edges.shape[1] for key, edges in embedded.edges.items() if not key[1].startswith("rev_")}
    assert counts == {
        ("built_from", "source"): 63_436,
        ("built_using", "source"): 12_726,
        ("depends", "package"): 247_686,
        ("depends", "virtual"): 33_577,
        ("pre_depends", "package"): 965,
        ("pre_depends", "virtual"): 29,
        ("recommends", "package"): 28_800,
        ("recommends", "virtual"): 779,
        ("suggests", "package"): 22_849,
        ("suggests", "virtual"): 878,
        ("enhances", "package"): 1_737,
        ("enhances", "virtual"): 45,
        ("breaks", "package"): 5_739,
        ("breaks", "virtual"): 194,
        ("conflicts", "package"): 1_509,
        ("conflicts", "virtual"): 360,
        ("replaces", "package"): 3_607,
        ("replaces", "virtual"): 444,
        ("provides", "package"): 457,
        ("provides", "virtual"): 7_630,
    }


def test_the_embedded_relations_are_small_and_hold_no_names():
    content = files("datapipes.datasets").joinpath(RELATIONS_FILE).read_bytes()
    assert len(content) < 400_000
    arrays = NpzArrays(RELATIONS_FILE, content)
    texts = {name for name in arrays.keys if arrays.get(name).dtype.kind == "U"}
    assert texts == {"format", "packages_digest"}
    assert arrays.get("packages_digest").shape == ()


def test_no_node_type_names_the_sections(embedded, homogeneous):
    """A guess by the source alone is the most frequent section; one by virtual names is about as good as one by words.

    The guess is naive Bayes: how often each neighbor of that type stands beside each section, in the train part.
    """
    labels, (train, _, test) = homogeneous.labels, homogeneous.split
    num_classes = len(homogeneous.class_names)
    words = homogeneous.node_features["words"].astype(np.int64)
    num_words = homogeneous.node_features["feat"].shape[1]
    package_of_word, place = np.nonzero(words < num_words)
    beside = {"words": np.stack([package_of_word, words[package_of_word, place]])}
    for node_type in ("source", "virtual"):
        ends = [edges for (_, _, dst), edges in embedded.edges.items() if dst == node_type]
        beside[node_type] = np.unique(np.concatenate(ends, axis=1), axis=1)

    def right(ends: np.ndarray, of: np.ndarray) -> float:
        counts = np.full((ends[1].max() + 1, num_classes), 0.1)
        known = np.isin(ends[0], train)
        np.add.at(counts, (ends[1, known], labels[ends[0, known]]), 1)
        scores = np.zeros((len(labels), num_classes)) + np.log(np.bincount(labels[train], minlength=num_classes) + 1)
        np.add.at(scores, ends[0], np.log(counts / counts.sum(axis=0))[ends[1]])
        return float((scores.argmax(axis=1) == labels)[of].mean())

    assert right(beside["words"], test) > 0.58
    assert right(beside["source"], test) < 0.2
    assert right(beside["virtual"], test) < 0.3
    with_virtual = np.intersect1d(test, beside["virtual"][0])
    assert right(beside["virtual"], with_virtual) < right(beside["words"], with_virtual) + 0.05


def test_the_embedded_relations_agree_with_the_published_ones(embedded):
    num_packages = embedded.num_nodes["package"]
    with np.load(published("debian_bookworm/debian_bookworm.npz"), allow_pickle=False) as arrays:
        if int(arrays["num_nodes_package"]) != num_packages:
            pytest.skip("made from another point release")
        source = arrays["edge_package__built_from__source"].astype(np.int64)
        for relation in ("recommends", "suggests", "enhances"):
            # The published ones also have providers of virtual names.
            edges_of_all = arrays[f"edge_package__{relation}__package"].astype(np.int64)
            pairs = [
                edges[0] * num_packages + edges[1]
                for edges in (embedded.edges["package", relation, "package"], edges_of_all)
            ]
            assert np.isin(*pairs).mean() > 0.99
    here = embedded.edges["package", "built_from", "source"]
    together = np.unique(np.stack([here[1][np.argsort(here[0])], source[1][np.argsort(source[0])]]), axis=1)
    assert together.shape[1] < 1.001 * embedded.num_nodes["source"]
