"""Reading RDF: triples in all of their spellings, the split files, AIFB, and broken files."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from published import published

from datapipes.base import sizes
from datapipes.datasets import rdf, text
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.rdf import ENTITY, read_rdf

AFFILIATION, EMPLOYS = rdf.LABEL_COLUMNS["label_affiliation"]
TRIPLES = f"""\
# a comment
<http://x/ann> <http://x/knows> <http://x/bob> .
<http://x/bob>\t<http://x/knows> <http://x/ann>. # both ways
<http://x/ann> <http://x/name> "Ann \\"A\\""@en .

<http://x/bob> <http://x/name> "Bob"^^<http://www.w3.org/2001/XMLSchema#string> .
<http://x/bob> <http://x/name> "Bob" .
_:b1 <http://x/knows> <http://x/bob> .
<http://x/ann> <{AFFILIATION}> <http://x/group> .
<http://x/group> <{EMPLOYS}> <http://x/bob> .
<{AFFILIATION}> <http://x/kind> <http://x/property> .
_:b1 <http://x/on> <{EMPLOYS}> .
"""
TRAIN = "id\tperson\tlabel_affiliation\r\n1\thttp://x/ann\thttp://x/group\r\n"
TEST = "person\tid\tlabel_affiliation\nhttp://x/bob\t2.0\thttp://x/agroup\n"


def written(folder: Path, triples: str = TRIPLES, **others: str) -> Path:
    files = {"trainingSet": TRAIN, "testSet": TEST, **others}
    folder.mkdir(exist_ok=True)
    (folder / "tiny_stripped.nt.gz").write_bytes(gzip.compress(triples.encode()))
    for name, content in files.items():
        (folder / f"{name}.tsv").write_bytes(content.encode())
    return folder


def read_names(folder: Path) -> set[tuple[str, str, str]]:
    """Read the triples of a data set without inverses, as names."""
    raw = read_rdf(folder, inverse_relations=False)
    names = raw.node_names[ENTITY]
    return {(names[u], relation, names[v]) for (_, relation, _), ends in raw.edges.items() for u, v in ends.T.tolist()}


def test_each_triple_is_an_edge_but_those_of_the_label_relations(tmp_path):
    assert read_names(written(tmp_path)) == {
        ("http://x/ann", "http://x/knows", "http://x/bob"),
        ("http://x/bob", "http://x/knows", "http://x/ann"),
        ("http://x/ann", "http://x/name", '"Ann \\"A\\""@en'),
        ("http://x/bob", "http://x/name", '"Bob"'),  # with and without xsd:string it is one literal
        ("_:b1", "http://x/knows", "http://x/bob"),
    }


def test_each_relation_has_an_inverse_with_the_same_edges(tmp_path):
    raw = read_rdf(written(tmp_path))
    for name in ("http://x/knows", "http://x/name"):
        forward, inverse = raw.edges[ENTITY, name, ENTITY], raw.edges[ENTITY, f"rev_{name}", ENTITY]
        assert np.array_equal(forward, inverse[::-1])
    assert len(raw.edges) == 4


def test_labels_and_parts_are_those_of_the_files(tmp_path, refuses):
    raw = read_rdf(written(tmp_path / "a"))
    names = raw.node_names[ENTITY]
    train, validation, test = (part[ENTITY] for part in raw.split)
    assert raw.class_names == ("http://x/agroup", "http://x/group")
    assert [names[i] for i in train.seeds] == ["http://x/ann"]
    assert [names[i] for i in test.seeds] == ["http://x/bob"]
    assert (train.labels.tolist(), test.labels.tolist(), len(validation.seeds)) == ([1], [0], 0)
    every = "id\tperson\tlabel_affiliation\n1\thttp://x/ann\thttp://x/group\n2\thttp://x/bob\thttp://x/agroup\n"
    assert read_rdf(written(tmp_path / "b", completeDataset=every)).name == "tiny"
    for wrong in (
        every.replace("/agroup", "/group"),
        every.rsplit("2", 1)[0],
        f"{every}3\thttp://x/eve\ta\n",
    ):
        refuses(DatasetFormatError, read_rdf, written(tmp_path / "b", completeDataset=wrong))


def test_a_label_that_is_a_number_is_so_in_any_spelling(tmp_path, refuses):
    header = "id\tbond\tlabel_mutagenic\n"
    split = {"trainingSet": f"{header}1.0\thttp://x/ann\t1.0\n", "testSet": f"{header}2.0\thttp://x/bob\t0.0\n"}
    every = f"{header}1\thttp://x/ann\t1\n2\thttp://x/bob\t0\n"
    raw = read_rdf(written(tmp_path, **split, completeDataset=every))
    train, _, test = (part[ENTITY] for part in raw.split)
    assert raw.class_names == ("0", "1")
    assert (train.labels.tolist(), test.labels.tolist()) == ([1], [0])
    for other in ("10", "01.50", "1.0.0", "a.0"):
        wrong = every.replace("\t1\n", f"\t{other}\n")
        refuses(DatasetFormatError, read_rdf, written(tmp_path, **split, completeDataset=wrong))


def test_numbers_do_not_depend_on_the_order_of_lines(tmp_path):
    first = read_rdf(written(tmp_path / "a"))
    lines = TRIPLES.splitlines()
    random.Random(0).shuffle(lines)
    second = read_rdf(written(tmp_path / "b", "\n".join(lines)))
    assert first.node_names == second.node_names
    assert all(np.array_equal(ends, second.edges[key]) for key, ends in first.edges.items())


SPELLINGS = {
    '"caf\\u00E9"': '"café"',
    '"a\\tb"': '"a\tb"',
    '"it\\\'s"': '"it\'s"',
    "<http://x/caf\\u00e9>": "<http://x/café>",
    '"\\U0001F600"': '"😀"',
    '"q\\u0022"': '"q\\""',
    '"a"^^<http://x/\\u00e9>': '"a"^^<http://x/é>',
}


def test_two_spellings_of_a_term_are_one_node(tmp_path):
    for spellings in SPELLINGS.items():
        lines = [f"<http://x/ann> <http://x/p> {term} .\n" for term in spellings]
        assert len(read_names(written(tmp_path, TRIPLES + "".join(lines)))) == 6


NO_TRIPLES = """\
<http://x/a> <http://x/b>
<http://x/a> <http://x/b> <http://x/c>
"a" <http://x/b> <http://x/c> .
<http://x/a> _:b <http://x/c> .
<http://x/a> <http://x/b> <http://x/c> <http://x/g> .
<http://x/a> <http://x/b> "open .
<http://x/a> <http://x/b> "a\\q" .
<http://x/a> <http://x/b> "\\uD800" .
<http://x/a> <http://x/b> "\\UFFFFFFFF" .
<> <http://x/b> <http://x/c> .
<_:a> <http://x/b> <http://x/c> .
<a> <http://x/b> <http://x/c> .
<http://x/a> <b> <http://x/c> .
<http://x/a> <http://x/b> </c> .
<http://x/a> <http://x/b> "c"^^<d> .
<http://x/a\\n> <http://x/b> <http://x/c> .
<http://x/a> <http://x/b\\t> <http://x/c> .
<http://x/a> <http://x/b> <http://x/c\\"> .
<http://x/a> <http://x/b> <http://x/c\\u00> .
<http://x/a> <http://x/b> "c"^^<http://x/d\\n> .
<http://x/ann> <rev_http://x/knows> <http://x/bob> .
_:a\\u0041 <http://x/b> <http://x/c> .
@prefix x: <http://x/> .
"""


def test_what_is_no_triple_is_refused_with_its_line(tmp_path, refuses):
    for line in NO_TRIPLES.splitlines():
        refuses(DatasetFormatError, read_rdf, written(tmp_path, TRIPLES + line))
    # Without an end; a search that goes back would never finish.
    refuses(DatasetFormatError, read_rdf, written(tmp_path, TRIPLES + '<a:b> <a:b> "' + "\\\\" * 400_000))


def test_the_class_of_an_entity_is_not_searched_for(tmp_path, monkeypatch):
    compared = []

    class Label(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    train = {f"http://x/{i}": Label(f"class {i}") for i in range(100)}
    column = "label_affiliation"
    monkeypatch.setattr(rdf, "_read_labels", lambda path: (train if path.name == rdf.TRAIN_FILE else {}, column))
    raw = read_rdf(written(tmp_path, "".join(f"<{name}> <http://x/is> <http://x/0> .\n" for name in train)))
    assert len(raw.class_names) == 100
    assert len(compared) < 1000  # each with each would be 10,000


def test_the_memory_that_triples_need_is_looked_at_as_they_grow(tmp_path, monkeypatch):
    lines = [f"<http://x/{i}> <http://x/p> <http://x/{i // 2}> .\n" for i in range(4000)]
    folder = written(tmp_path, "".join(lines))
    (folder / "trainingSet.tsv").write_text(TRAIN.replace("ann", "1"))
    (folder / "testSet.tsv").write_text(TEST.replace("bob", "2"))
    monkeypatch.setattr(rdf, "UNCHECKED_BYTES", 2**16)
    monkeypatch.setattr(text, "CHUNK_BYTES", 2**14)
    looks = []
    with monkeypatch.context() as patched:
        patched.setattr(rdf, "check_memory", lambda where, what, num_bytes, remedy: looks.append(num_bytes))
        tracemalloc.start()
        try:
            read_rdf(folder)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak <= len(looks) * 2**16 + looks[-1]
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (2**17, "the test"))
    with pytest.raises(MemoryError, match=r"tiny_stripped\.nt\.gz from line \d{3} on, after \d{3} triples, needs"):
        read_rdf(folder)


def test_split_files_that_do_not_fit_are_refused(tmp_path, refuses):
    for test in (
        TEST.replace("bob", "ann"),
        TEST.replace("bob", "eve"),
        TEST + "http://x/b\n",
        TEST + TEST.splitlines()[1],
        "",
        TEST.replace("affiliation", "colour"),
        TEST.replace("label_affiliation", "label_mutagenic"),
    ):
        refuses(DatasetFormatError, read_rdf, written(tmp_path, testSet=test))
    (tmp_path / "testSet.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"testSet\.tsv"):
        read_rdf(tmp_path)
    (tmp_path / "other.nt").write_text("")
    refuses(DatasetFormatError, read_rdf, tmp_path)


@examples(100)
@given(place=st.integers(0, len(TRIPLES) - 1), letter=st.sampled_from(list('<>"\\_:@^.# \n\tx\x00')))
def test_changed_text_is_refused_or_still_makes_a_data_set(tmp_path_factory, place, letter):
    folder = written(tmp_path_factory.mktemp("t"), TRIPLES[:place] + letter + TRIPLES[place + 1 :])
    try:
        raw = read_rdf(folder)
    except DatasetFormatError:
        return
    assert sum(ends.shape[1] for ends in raw.edges.values()) <= 2 * 11


def test_aifb_has_the_counts_of_its_paper():
    raw = read_rdf(published("aifb"))
    # 29,043 triples of 45 predicates over 8,285 nodes, less the 5 triples about affiliation and employs, and these two.
    assert len(raw.edges) == 2 * 45
    assert sum(ends.shape[1] for ends in raw.edges.values()) == 2 * (29_043 - 5)
    assert raw.num_nodes == {ENTITY: 8285 - 2}
    train, validation, test = (part[ENTITY] for part in raw.split)
    assert (len(train.seeds), len(validation.seeds), len(test.seeds)) == (140, 0, 36)
    labels = np.concatenate([train.labels, test.labels])
    assert np.bincount(labels).tolist() == [73, 28, 60, 15]
    names = raw.node_names[ENTITY]
    assert not set(names) & {AFFILIATION, EMPLOYS}
    assert all("/Personen/" in names[i] for i in np.concatenate([train.seeds, test.seeds]))
