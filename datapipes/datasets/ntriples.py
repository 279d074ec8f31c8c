"""Read RDF triples in N-Triples, packed with gzip or not, line by line.

A term comes out in the one way that all of its spellings share: an IRI without its brackets, a blank node with "_:"
before, a literal in quotes with its language or type; xsd:string is left out, as RDF 1.1 has it. No term of one kind
has the text of another: an IRI begins with its scheme, and no scheme is "_".

Invariant: time stays in proportion to the text, which has at most `MAX_BYTES`. Terms and triples as Python objects take
about ten times the memory of their text; the memory that is left is looked at as they grow. Refused with
`DatasetFormatError`: lines that are no triple, terms that RDF does not allow in their place, escapes that mean nothing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from datapipes.base.checks import shown
from datapipes.base.sizes import UNCHECKED_BYTES, check_memory
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.text import text_lines

MAX_BYTES = 2**30  # of text
TRIPLE_BYTES, TERM_BYTES = 256, 128  # that each takes at most, here and in rdf.py, besides the texts of a term

_NO_ESCAPE = r'[^<>"\s\\]*'
_IRI = rf"<[A-Za-z][A-Za-z0-9+.-]*:{_NO_ESCAPE}(?:\\(?:u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}){_NO_ESCAPE})*>"
_BLANK = r'_:[^\s<>"\\]+'
_LITERAL = rf'"[^"\\]*(?:\\.[^"\\]*)*"(?:\^\^{_IRI}|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(rf"({_IRI}|{_BLANK})\s+({_IRI})\s+({_IRI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_PLAIN = {"t": "\t", "b": "\b", "f": "\f", "'": "'"}  # may stand for themselves
_KEPT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_STRING = "^^<http://www.w3.org/2001/XMLSchema#string>"


def read_triples(path: Path, left_out: frozenset[str]) -> list[tuple[str, str, str]]:
    """Return the distinct triples without those that name a term of `left_out`.

    Raises:
        DatasetFormatError: The file is broken or hostile.
        MemoryError: The triples need more memory than is left.
    """
    num_bytes, next_look = 0, UNCHECKED_BYTES
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
                num_bytes += TERM_BYTES + sys.getsizeof(text) + sys.getsizeof(terms[text])
        subject, predicate, object_ = (terms[text] for text in match.groups())
        if left_out.isdisjoint((subject, predicate, object_)):
            triples[subject, predicate, object_] = None
        if num_bytes + TRIPLE_BYTES * len(triples) >= next_look:
            what = f"{path.name} from line {number} on, after {len(triples)} triples,"
            # The next triples up to the next look, and what rdf.py makes of those so far.
            check_memory("datasets.open", what, UNCHECKED_BYTES + next_look // 2, "Use a machine with more memory.")
            next_look += UNCHECKED_BYTES
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
