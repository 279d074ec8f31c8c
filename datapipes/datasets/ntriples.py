"""Read RDF triples in N-Triples, packed with gzip or not, line by line.

A term comes out in the one way that all of its spellings share: an IRI without its brackets, a blank node with "_:"
before, a literal in quotes with its language or type; xsd:string is left out, as RDF 1.1 has it.

Invariant: time and memory stay in proportion to the text, which has at most `MAX_BYTES`. Refused with
`DatasetFormatError`: lines that are no triple, terms that RDF does not allow in their place, escapes that mean nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from datapipes.base.checks import shown
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.text import text_lines

MAX_BYTES = 2**30  # of text

_IRI = r'<[^<>"\s]+>'
_BLANK = r'_:[^\s<>"]+'
_LITERAL = r'"[^"\\]*(?:\\.[^"\\]*)*"(?:\^\^<[^<>"\s]+>|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(rf"({_IRI}|{_BLANK})\s+({_IRI})\s+({_IRI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_PLAIN = {"t": "\t", "b": "\b", "f": "\f", "'": "'"}  # may stand for themselves
_KEPT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_STRING = "^^<http://www.w3.org/2001/XMLSchema#string>"


def read_triples(path: Path, left_out: frozenset[str]) -> list[tuple[str, str, str]]:
    """Return the distinct triples without those that name a term of `left_out`."""
    triples: dict[tuple[str, str, str], None] = {}
    terms: dict[str, str] = {}  # as written: one str for each term, however often it is named
    for number, line in text_lines(path, MAX_BYTES):
        if line.startswith("#"):
            continue
        match = _TRIPLE.fullmatch(line)
        if match is None:
            found = f"line {number}, {shown(line[:200])}"
            raise DatasetFormatError.of(path.name, found, "a triple: subject, predicate and object, then a full stop")
        for text in match.groups():
            if text not in terms:
                terms[text] = _term(path.name, number, text)
        subject, predicate, object_ = (terms[text] for text in match.groups())
        if left_out.isdisjoint((subject, predicate, object_)):
            triples[subject, predicate, object_] = None
    return list(triples)


def _term(file: str, number: int, text: str) -> str:
    """Return a term in the one way that all of its spellings share; IRIs lose their brackets."""
    if "\\" in text:
        try:
            text = _ESCAPE.sub(_unescaped, text)
            text.encode("utf-8")
        except (ValueError, OverflowError) as error:
            found = f"line {number}, {shown(text[:200])}, with an escape that means nothing"
            raise DatasetFormatError.of(file, found, "the escapes of N-Triples") from error
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
