"""The embedded data set: the maker (index to file) and the reader (file to data set)."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections import defaultdict
from importlib.resources import files

import make_debian_packages as maker
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import published

from datapipes.datasets import debian
from datapipes.datasets.debian import read_debian_packages
from datapipes.datasets.raw import DatasetFormatError

INDEX = """\
Package: zeta
Source: alpha (1.2-3)
Version: 1
Depends: libbeta (>= 2.0), gamma | beta-virtual | alpha (<< 3~), python3:any,
 folded-one
Description: Strategy game of the Zeta tools
 A longer text whose words must not be used
 .
 Depends: not-this-one
Section: games

Package: alpha
Depends: zeta
Pre-Depends: libbeta
Recommends: gamma
Section: contrib/libs
Description: strategy tools, 3rd edition: C 2

Package: libbeta
Source: alpha
Depends: libbeta (= 1), nowhere
Provides: beta-virtual
Description: TOOLS

Package: gamma
Section: libs
Description: game

Package: python3
Section: python

Package: folded-one
Source: other
Section: games

Package: gamma
Section: doc
Description: never used, the first gamma wins
"""
NAMES = ["alpha", "folded-one", "gamma", "libbeta", "python3", "zeta"]


def rows(arrays: dict[str, np.ndarray], prefix: str) -> list[list[int]]:
    ends = np.cumsum(arrays[f"{prefix}_degree"].astype(np.int64))[:-1]
    return [part.tolist() for part in np.split(arrays[f"{prefix}_ids"], ends)]


def depends_of(index: str) -> dict[str, list[str]]:
    packages = maker.read_packages(index.splitlines())
    names = [package.name for package in packages]
    found = rows(maker.make_arrays(packages), "depends")
    return {name: [names[target] for target in targets] for name, targets in zip(names, found, strict=True)}


# The maker.


def test_packages_are_sorted_by_name_and_the_first_stanza_of_a_name_is_taken():
    packages = maker.read_packages(INDEX.splitlines())
    assert [package.name for package in packages] == NAMES
    assert packages[2].section == "libs"


def test_the_source_is_named_without_its_version_and_defaults_to_the_package():
    sources = {package.name: package.source for package in maker.read_packages(INDEX.splitlines())}
    assert sources["zeta"] == sources["libbeta"] == sources["alpha"] == "alpha"
    assert sources["gamma"] == "gamma"


def test_depends_are_real_packages_with_every_alternative_and_no_self_loop():
    assert depends_of(INDEX) == {
        "alpha": ["libbeta", "zeta"],  # Pre-Depends counts, Recommends does not
        "folded-one": [],
        "gamma": [],
        "libbeta": [],  # depends on itself and on a name without a stanza
        "python3": [],
        "zeta": ["alpha", "folded-one", "gamma", "libbeta", "python3"],
    }


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("a", ["a"]),
        ("a | b,c|d", ["a", "b", "c", "d"]),
        ("libc6 (>= 2.34), libc6 (<< 3)", ["libc6", "libc6"]),
        ("python3:any (>= 3.11~), perl:native", ["python3", "perl"]),
        ("libstdc++6, gir1.2-gtk-3.0, g++-12", ["libstdc++6", "gir1.2-gtk-3.0", "g++-12"]),
        ("a [amd64], b <!nocheck>", ["a", "b"]),
        ("", []),
        (" , | ,", []),
    ],
)
def test_dependency_names_leave_out_all_but_the_name(field, names):
    assert maker.dependency_names(field) == names


def test_a_virtual_name_that_is_also_a_real_package_counts():
    index = "Package: a\nDepends: mta\n\nPackage: b\nProvides: mta\n"
    assert depends_of(index)["a"] == []
    assert depends_of(index + "\nPackage: mta\n")["a"] == ["mta"]


def test_words_are_of_the_first_line_of_the_description_alone():
    arrays = maker.make_arrays(maker.read_packages(INDEX.splitlines()), min_descriptions=1)
    vocabulary = arrays["vocabulary"].tolist()
    words = {name: [vocabulary[word] for word in row] for name, row in zip(NAMES, rows(arrays, "word"), strict=True)}
    assert words == {
        "alpha": ["3rd", "edition", "strategy", "tools"],
        "folded-one": [],
        "gamma": ["game"],
        "libbeta": ["tools"],  # "beta" is in its name but not in its description
        "python3": [],
        "zeta": ["game", "strategy", "tools", "zeta"],
    }


def test_a_word_must_stand_in_enough_descriptions():
    arrays = maker.make_arrays(maker.read_packages(INDEX.splitlines()), min_descriptions=2)
    assert arrays["vocabulary"].tolist() == ["game", "strategy", "tools"]


def test_labels_are_sections_without_their_component_and_minus_one_where_there_is_none():
    arrays = maker.make_arrays(maker.read_packages(INDEX.splitlines()))
    assert arrays["class_names"].tolist() == ["games", "libs", "python"]
    assert arrays["label"].tolist() == [1, 0, 1, -1, 2, 0]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_no_source_crosses_the_split(sources):
    stanzas = [f"Package: p{number}\nSource: s{source} (1.{number})" for number, source in enumerate(sources)]
    packages = maker.read_packages("\n\n".join(stanzas).splitlines())
    parts = defaultdict(set)
    for package, part in zip(packages, maker.make_arrays(packages)["split"].tolist(), strict=True):
        parts[package.source].add(part)
    assert len(parts) == len(set(sources))
    assert all(len(found) == 1 and found <= {0, 1, 2} for found in parts.values())


def test_the_split_is_about_60_20_20_and_never_changes():
    shares = np.bincount([maker.split_of(f"source-{number}") for number in range(10_000)]) / 10_000
    assert np.allclose(shares, [0.6, 0.2, 0.2], atol=0.02)
    assert [maker.split_of(name) for name in ("bash", "apt", "perl")] == [0, 1, 2]


def test_the_maker_runs_as_a_script(tmp_path):
    (tmp_path / "Packages").write_text(INDEX)
    command = [sys.executable, maker.__file__, "--packages", tmp_path / "Packages"]
    done = subprocess.run([*command, tmp_path / "out.npz"], capture_output=True, text=True, check=True, timeout=60)
    assert "6 packages, 7 depends edges" in done.stdout


def test_the_release_is_read_from_the_file_beside_the_index(tmp_path):
    index = tmp_path / "mirror_dists_bookworm_main_binary-amd64_Packages"
    assert maker.release_of(index) == maker.DEFAULT_RELEASE
    signed = tmp_path / "mirror_dists_bookworm_InRelease"
    signed.write_text("Origin: Debian\nVersion: 12.1\nCodename: bookworm\nDate: Sat, 1 Jul 2023 09:00:00 UTC\n")
    assert maker.release_of(index) == "Debian 12.1 (bookworm) main amd64, Sat, 1 Jul 2023 09:00:00 UTC"


def test_what_is_no_index_and_a_file_beyond_the_limit_are_refused(tmp_path, monkeypatch, refuses):
    refuses(ValueError, maker.read_packages, [])
    refuses(ValueError, maker.read_packages, ["Section: games", "", "Package: a"])
    monkeypatch.setattr(maker, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 are allowed"):
        maker.write_npz(tmp_path / "out.npz", {"label": np.zeros(10)})
    assert not (tmp_path / "out.npz").exists()


# The reader, on a tiny file from the maker.


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Replace the embedded data set by a tiny one; return its arrays and a function that changes them."""
    monkeypatch.setattr(debian, "files", lambda package: tmp_path)
    arrays = maker.make_arrays(maker.read_packages(INDEX.splitlines()), min_descriptions=1)

    def put(**instead: np.ndarray) -> None:
        maker.write_npz(tmp_path / debian.FILE, arrays | instead)

    put()
    return arrays, put


def pairs(direction: str) -> set[tuple[str, str]]:
    edges = read_debian_packages(direction).edge_index
    order = np.lexsort((edges[0], edges[1]))
    assert np.array_equal(order, np.arange(edges.shape[1]))
    return {(NAMES[source], NAMES[destination]) for source, destination in edges.T.tolist()}


@pytest.mark.usefixtures("tiny")
def test_the_in_edges_are_what_the_direction_says():
    depends = {(target, name) for name, targets in depends_of(INDEX).items() for target in targets}
    reverse = {(name, target) for target, name in depends}
    assert pairs("depends") == depends
    assert pairs("reverse") == reverse
    assert pairs("both") == depends | reverse
    assert read_debian_packages().edge_index.shape == (2, len(depends | reverse))


def test_feat_and_words_say_the_same(tiny):
    arrays, _ = tiny
    features = read_debian_packages().node_features
    num_words = len(arrays["vocabulary"])
    assert features["feat"].shape == (6, num_words)
    assert features["feat"].dtype == np.uint8
    assert features["words"].shape == (6, 4)
    assert features["words"].dtype == np.int16
    for row, bag, words in zip(rows(arrays, "word"), features["feat"], features["words"], strict=True):
        assert np.flatnonzero(bag).tolist() == row
        assert words.tolist() == row + [num_words] * (4 - len(row))


def test_labels_and_split_are_those_of_the_file(tiny):
    arrays, _ = tiny
    dataset = read_debian_packages()
    assert dataset.labels.tolist() == arrays["label"].tolist()
    assert dataset.class_names == ("games", "libs", "python")
    for part, ids in enumerate(dataset.split):
        assert ids.tolist() == np.flatnonzero(arrays["split"] == part).tolist()


def test_a_file_that_does_not_fit_is_refused(tiny, refuses):
    _, put = tiny
    for instead in (
        {"format": np.array("another")},
        {"depends_degree": np.full(6, 9)},
        {"depends_degree": np.zeros(6, np.uint8)},
        {"depends_degree": np.zeros(5, np.uint8)},
        {"depends_ids": np.array([3, 5, 0, 1, 2, 3, 6])},
        {"depends_ids": np.array([5, 3, 0, 1, 2, 3, 4])},
        {"label": np.array([1, 0, 1, -1, 3, 0])},
        {"split": np.array([0, 0, 0, 1, 2, 3])},
        {"vocabulary": np.array(["only"])},
        {"vocabulary": np.array(["w"] * 40_000)},
    ):
        put(**instead)
        refuses(DatasetFormatError, read_debian_packages)
    refuses(ValueError, read_debian_packages, "in")


# The embedded file.


@pytest.fixture(scope="module")
def embedded():
    return read_debian_packages("depends")


def test_the_embedded_data_set_has_the_counts_that_are_documented(embedded):
    assert embedded.num_nodes == 63_436
    assert embedded.edge_index.shape == (2, 247_686)
    assert embedded.node_features["feat"].shape == (63_436, 2_220)
    assert embedded.node_features["words"].shape == (63_436, 26)
    assert len(embedded.class_names) == 58
    assert embedded.labels.min() == 0
    assert tuple(map(len, embedded.split)) == (38_179, 12_970, 12_287)
    assert sum(map(len, embedded.split)) == embedded.num_nodes
    assert read_debian_packages("both").edge_index.shape == (2, 495_236)


def test_the_embedded_file_is_small_and_holds_no_names():
    content = files("datapipes.datasets").joinpath(debian.FILE).read_bytes()
    assert len(content) <= maker.MAX_FILE_BYTES
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        assert set(arrays.files) == {
            *("format", "release", "depends_degree", "depends_ids", "word_degree", "word_ids"),
            *("vocabulary", "label", "class_names", "split"),
        }
        assert str(arrays["release"]).startswith("Debian 12")
        assert all(re.fullmatch(r"[a-z0-9]{2,}", word) for word in arrays["vocabulary"].tolist())


def test_description_words_tell_the_section_far_better_than_the_most_frequent_class(embedded):
    """Naive Bayes on the words; the ridge classifier of the documentation is better still."""
    words, labels = embedded.node_features["words"].astype(np.int64), embedded.labels
    train, _, test = embedded.split
    counts = np.zeros((len(embedded.class_names), 2_221))
    np.add.at(counts, (labels[train, None], words[train]), 1)
    counts = counts[:, :-1] + 0.1
    scores = np.log(counts / counts.sum(axis=1, keepdims=True))
    scores = np.concatenate([scores, np.zeros((len(scores), 1))], axis=1).T
    prior = np.log(np.bincount(labels[train], minlength=len(counts)) + 1)
    guess = (scores[words[test]].sum(axis=1) + prior).argmax(axis=1)
    assert (labels[test] == np.bincount(labels[train]).argmax()).mean() < 0.12
    assert (guess == labels[test]).mean() > 0.55


def test_the_embedded_graph_agrees_with_the_published_one():
    with np.load(published("debian_bookworm/debian_bookworm.npz"), allow_pickle=False) as arrays:
        labels, edges = arrays["package_label"], arrays["edge_package__depends__package"].astype(np.int64)
        class_names = tuple(arrays["label_names"].tolist())
    dataset = read_debian_packages("depends")
    if dataset.num_nodes != len(labels):
        pytest.skip("made from another point release")
    assert dataset.class_names == class_names
    assert (dataset.labels == labels).mean() > 0.999
    expected = set((edges[0] * len(labels) + edges[1]).tolist())
    here = set((dataset.edge_index[1] * len(labels) + dataset.edge_index[0]).tolist())
    assert len(here & expected) > 0.99 * len(here)  # the published one also has providers of virtual names
