"""Read an RDF graph: N-Triples, and tab-separated files of labelled entities as published with R-GCN (AIFB).

The graph has one node type, "entity": each subject and each object is a node, literals too, as in Schlichtkrull et al.
Each predicate is a relation ("entity", IRI, "entity"), from subject to object, and has an inverse ("entity", "rev_" +
IRI, "entity"). Without the inverse no message would reach persons from the publications that name them as authors.

Labels that are equal as numbers are one class: the files of MUTAG write 0 and 0.0 for the same class.

R-GCN leaves out the relations that state the labels (`LABEL_COLUMNS`). Here a triple is left out if such a relation is
its predicate, subject or object. In AIFB the relations `member` and `head`, from a group to a person, stay, as in the
published figures. But `member` states the label of 73 and `head` of 5 of the 176 persons.

Invariant: each distinct triple that is not left out is one edge of its relation. Numbers of nodes, classes and edges do
not depend on the order of lines. Refused with `DatasetFormatError`: broken lines, terms where RDF does not allow them,
unknown escapes, split files with a repeated or an unknown entity, and label columns of unknown data sets.

All spellings of a term have one text: an IRI without its brackets, a blank node with "_:" before, a literal in quotes
with its language or type; xsd:string is left out, as in RDF 1.1. Terms of two kinds never have equal texts: an IRI
begins with its scheme, and no scheme is "_".

Time stays in proportion to the text. Terms and triples take about ten times the memory of their text, as Python
objects; the memory left is checked as they grow.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.sizes import UNCHECKED_BYTES, check_memory
from datapipes.base.types import EdgeType, NodeType
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset, labelled_items, with_inverses
from datapipes.datasets.text import text_lines

ENTITY = "entity"
MAX_SPLIT_BYTES = 2**26  # of the text of a split file
MAX_RELATIONS = 2**16
TRAIN_FILE, TEST_FILE, ALL_FILE = "trainingSet.tsv", "testSet.tsv", "completeDataset.tsv"

# {name of the label column: the predicates that state the label}
LABEL_COLUMNS = {
    "label_affiliation": ("http://swrc.ontoware.org/ontology#affiliation", "http://swrc.ontoware.org/ontology#employs"),
    "label_mutagenic": ("http://dl-learner.org/carcinogenesis#isMutagenic",),
    "label_lithogenesis": ("http://data.bgs.ac.uk/ref/Lexicon/hasLithogenesis",),
    "label_cateogory": (  # so spelled in the files of AM
        "http://purl.org/collections/nl/am/objectCategory",
        "http://purl.org/collections/nl/am/material",
    ),
}


def read_rdf(path: Path, *, inverse_relations: bool | None = None) -> RawHeteroDataset:
    """Read the triples in a file .nt or .nt.gz, and the labels and the split beside it.

    Args:
        path: The file, or a folder with only one such file. The files trainingSet.tsv and testSet.tsv in the same
            folder list the labelled entities; completeDataset.tsv may be there too, and must then agree with both.
        inverse_relations: True or None: add the inverse of each relation. False: do not.
    Returns:
        Nodes are numbered in the order of their names. A name is an IRI as it is, a blank node with "_:" before, or a
        literal in quotes. Nodes have no features. Class names are the labels of the files, sorted as text; "0.0"
        becomes "0". The validation part is empty, since the files have no such part.
        Time O(n log n) for n triples.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile or of an unknown data set.
        MemoryError: The triples need more memory than is left.
    """
    path = _triples_file(path)
    parts, label_column = _read_split(path.parent)
    triples = read_triples(path, frozenset(LABEL_COLUMNS[label_column]))
    names = sorted({term for subject, _, object_ in triples for term in (subject, object_)})
    number = {name: i for i, name in enumerate(names)}
    by_predicate: dict[str, list[tuple[int, int]]] = {}
    for subject, predicate, object_ in triples:
        by_predicate.setdefault(predicate, []).append((number[subject], number[object_]))
    if len(by_predicate) > MAX_RELATIONS:
        raise DatasetFormatError.of(path.name, f"{len(by_predicate)} predicates", f"at most {MAX_RELATIONS}")
    edges: dict[EdgeType | None, np.ndarray] = {
        (ENTITY, predicate, ENTITY): np.array(sorted(pairs), dtype=np.int64).T
        for predicate, pairs in sorted(by_predicate.items())
    }
    classes = sorted({label for part in parts for label in part.values()})
    class_of = {label: i for i, label in enumerate(classes)}
    labels = np.full(len(names), -1, dtype=np.int64)
    ids = []
    for file, part in zip((TRAIN_FILE, TEST_FILE), parts, strict=True):
        unknown = [name for name in part if name not in number]
        if unknown:
            raise DatasetFormatError.of(file, f"the entity {shown(unknown[0])}", f"entities of {path.name}")
        ids.append(np.array(sorted(number[name] for name in part), dtype=np.int64))
        labels[[number[name] for name in part]] = [class_of[label] for label in part.values()]
    node_names: dict[NodeType | None, tuple[str, ...]] = {ENTITY: tuple(names)}
    return RawHeteroDataset(
        name=path.name.removesuffix(".gz").removesuffix(".nt").removesuffix("_stripped"),
        num_nodes={ENTITY: len(names)},
        edges=with_inverses(edges) if inverse_relations is not False else edges,
        node_features={},
        edge_features={},
        task="node_classification",
        split=labelled_items(ENTITY, labels, (ids[0], np.zeros(0, dtype=np.int64), ids[1])),
        class_names=tuple(classes),
        node_names=node_names,
    )


def is_rdf(path: Path) -> bool:
    """Return whether `path` is a file of N-Triples, or a folder with one."""
    return bool(_candidates(path))


def _candidates(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if file.name.endswith((".nt", ".nt.gz"))]


def _triples_file(path: Path) -> Path:
    files = _candidates(path)
    if len(files) != 1:
        names = [file.name for file in files]
        raise DatasetFormatError.of(str(path), f"the files {names}", "one file .nt or .nt.gz", "Name the file itself.")
    return files[0]


def _read_split(folder: Path) -> tuple[list[dict[str, str]], str]:
    """Return ([{entity: label} of train, {entity: label} of test], name of the column with the labels)."""
    read = [_read_labels(folder / file) for file in (TRAIN_FILE, TEST_FILE)]
    (train, column), (test, other_column) = read
    if column != other_column:
        raise DatasetFormatError.of(TEST_FILE, f"the column {other_column!r}", f"{column!r}, as in {TRAIN_FILE}")
    twice = train.keys() & test.keys()
    if twice:
        fault = f"{shown(min(twice))}, which is in {TRAIN_FILE} too"
        raise DatasetFormatError.of(TEST_FILE, fault, "train and test disjoint")
    if (folder / ALL_FILE).exists():
        every, _ = _read_labels(folder / ALL_FILE)
        stated = {**train, **test}
        for entity in (*stated, *every):
            label, other = every.get(entity), stated.get(entity)
            if label != other:
                both = f"{TRAIN_FILE} and {TEST_FILE} together"
                fault = f"{shown(entity)} {_labelled(label)}"
                raise DatasetFormatError.of(ALL_FILE, fault, f"it {_labelled(other)}, as in {both}")
    return [train, test], column


def _labelled(label: str | None) -> str:
    return "without a label" if label is None else f"with the label {shown(label)}"


def _read_labels(path: Path) -> tuple[dict[str, str], str]:
    """Return ({entity: label}, name of the label column) of a file.

    The header of the file names the columns, in any order: the entity, its label, and perhaps an id.
    """
    lines = text_lines(path, MAX_SPLIT_BYTES)
    _, header = next(lines, (0, ""))
    columns = header.split("\t")
    label_columns = [column for column in columns if column.startswith("label_")]
    others = [column for column in columns if column not in ("id", *label_columns)]
    if len(label_columns) != 1 or len(others) != 1 or label_columns[0] not in LABEL_COLUMNS:
        allowed = f"a column of entities, a label column of {sorted(LABEL_COLUMNS)}, and optionally 'id'"
        remedy = "Pass a data set with these labels: of others the relations that give the labels away are unknown."
        raise DatasetFormatError.of(path.name, f"the columns {shown(columns)}", allowed, remedy)
    entity, label = columns.index(others[0]), columns.index(label_columns[0])
    labels: dict[str, str] = {}
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(columns) or not fields[entity] or not fields[label] or fields[entity] in labels:
            fault = f"line {number}, {shown(line[:200])}"
            raise DatasetFormatError.of(
                path.name, fault, f"{len(columns)} fields with tabs between, none empty, and each entity once"
            )
        labels[fields[entity]] = _number(fields[label])
    if len(set(labels.values())) > MAX_CLASSES:
        raise DatasetFormatError.of(path.name, f"{len(set(labels.values()))} labels", f"at most {MAX_CLASSES}")
    return labels, label_columns[0]


def _number(label: str) -> str:
    """Return one spelling for equal numbers, such as "1" for "1.0"; return other labels as they are."""
    return label.rstrip("0").rstrip(".") if re.fullmatch(r"-?[0-9]+\.[0-9]*", label) else label


MAX_BYTES = 2**30  # of text
TRIPLE_BYTES, TERM_BYTES = 256, 128  # the most memory of a triple, and of a term without its text

_NO_ESCAPE = r'[^<>"\s\\]*'
_IRI = rf"<[A-Za-z][A-Za-z0-9+.-]*:{_NO_ESCAPE}(?:\\(?:u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}){_NO_ESCAPE})*>"
_BLANK = r'_:[^\s<>"\\]+'
_LITERAL = rf'"[^"\\]*(?:\\.[^"\\]*)*"(?:\^\^{_IRI}|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(rf"({_IRI}|{_BLANK})\s+({_IRI})\s+({_IRI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?")
_FORM = (
    "a subject (IRI or blank node), a predicate (IRI), an object and a full stop; an IRI in <> has a scheme, no space, "
    r"no quote, and no backslash except in \uXXXX and \UXXXXXXXX; a blank node is _: and a name without these"
)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_PLAIN = {"t": "\t", "b": "\b", "f": "\f", "'": "'"}  # may also be written unescaped
_KEPT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_STRING = "^^<http://www.w3.org/2001/XMLSchema#string>"


def read_triples(path: Path, left_out: frozenset[str]) -> list[tuple[str, str, str]]:
    """Return the distinct triples without a term in `left_out`, in the order of the file.

    Raises:
        DatasetFormatError: The file is broken or hostile.
        MemoryError: The triples need more memory than is left.
    """
    num_bytes, next_look = 0, UNCHECKED_BYTES
    triples: dict[tuple[str, str, str], None] = {}
    terms: dict[str, str] = {}  # {term as written: one str for all its uses}
    for number, line in text_lines(path, MAX_BYTES):
        if line.startswith("#"):
            continue
        match = _TRIPLE.fullmatch(line)
        if match is None:
            fault = f"line {number}, {shown(line[:200])}"
            raise DatasetFormatError.of(path.name, fault, _FORM)
        for text in match.groups():
            if text not in terms:
                terms[text] = _term(path.name, number, text)
                num_bytes += TERM_BYTES + sys.getsizeof(text) + sys.getsizeof(terms[text])
        subject, predicate, object_ = (terms[text] for text in match.groups())
        if left_out.isdisjoint((subject, predicate, object_)):
            triples[subject, predicate, object_] = None
        if num_bytes + TRIPLE_BYTES * len(triples) >= next_look:
            reading = f"{path.name} from line {number} on, after {len(triples)} triples,"
            # The triples until the next check, and the arrays made of the triples so far.
            check_memory("datasets.open", reading, UNCHECKED_BYTES + next_look // 2, "Use a machine with more memory.")
            next_look += UNCHECKED_BYTES
    return list(triples)


def _term(file: str, number: int, text: str) -> str:
    """Return the text that this package uses for an RDF term: the same for all spellings of the term.

    IRIs lose their brackets. `number` is the number of the line, for the error.
    """
    if "\\" in text:
        try:
            text = _ESCAPE.sub(_unescaped, text)
            text.encode("utf-8")
        except (ValueError, OverflowError) as error:
            fault = f"line {number}, {shown(text[:200])}, with an unknown escape"
            raise DatasetFormatError.of(
                file, fault, r"""\t \b \n \r \f \" \' or \\, or \uXXXX or \UXXXXXXXX of a character"""
            ) from error
    return text[1:-1] if text.startswith("<") else text.removesuffix(_STRING)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        letter = chr(int(code[1:], 16))
        return _KEPT.get(letter, letter)
    if code in 'nr"\\':
        return f"\\{code}"
    if code not in _PLAIN:
        raise ValueError(f"\\{code}")
    return _PLAIN[code]
