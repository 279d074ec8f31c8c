"""Make the embedded data set of the package, the graph of Debian's packages, from a `Packages` index.

Run: python tools/make_debian_packages.py [--packages FILE] OUT.npz [RELATIONS.npz]

OUT.npz is all of the homogeneous graph. RELATIONS.npz is what the heterogeneous graph adds to it; the two files
belong together, so one run makes both.

Nodes: the binary packages of the index (Debian 12 "bookworm", component main, amd64), sorted by name. Of
several stanzas with one name the first counts.

Edges: package a depends on package b, by Depends or Pre-Depends. Every alternative of `a | b` counts.
Versions and architecture qualifiers are ignored. Names without a stanza (virtual packages) are dropped.
There are no self loops, and each pair occurs once.

Features: the words of the one-line description. A word is a run of ASCII letters and digits in lower
case, of at least two characters with a letter among them, that is no stop word and occurs in at least
`MIN_DESCRIPTIONS` descriptions. The package's name does not count as words.

Relations, besides the edges: what the fields in `RELATIONS` say of other packages, and of virtual names. A virtual
name has no stanza, but a package provides it; it becomes a node if two packages or more name it. Each package is
built from one source, a node too, and may be built using others. Repeats and self loops are dropped as above.

Left out, since they say the section in other words: tags, maintainers, homepages, and the names of packages, sources
and virtual packages. tools/debian_leaks.py measures it and has the figures. Ids follow the order of
names, so an id is no feature either.

Label: the archive section without its component. Split: by a hash of the source package, so that the
binaries of one source, which often share most of a description, are in the same part.

Invariant: equal indices give equal bytes (fixed time stamps, fixed order). The file holds no package,
source or maintainer name. Refused: an index without packages, a stanza without a name, and an output that
would exceed `MAX_FILE_BYTES`. Without --packages the index is read from where `apt-get update` leaves it.
Compressed indices are read with apt-helper, so run this on Debian.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FORMAT = "datapipes debian packages 1"
RELATIONS_FORMAT = "datapipes debian relations 1"
DEFAULT_RELEASE = "Debian 12 (bookworm) main amd64"
LISTS_FOLDER = Path("/var/lib/apt/lists")
LISTS_PATTERN = "*_debian_dists_bookworm_main_binary-amd64_Packages*"
APT_HELPER = "/usr/lib/apt/apt-helper"
MIN_DESCRIPTIONS = 20
MAX_FILE_BYTES = 2_000_000
TRAIN_SHARE, VALIDATION_SHARE = 0.6, 0.2
_STOP_WORDS = """
    an and are as at be by can for from has have in into is it its of on or other such than that the their
    them these this to up used using via when which will with without you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

# What a package says of others, by the field of its stanza. Depends and Pre-Depends together are the edges.
RELATIONS = {
    "depends": ("Depends", "Pre-Depends"),
    "pre_depends": ("Pre-Depends",),
    "recommends": ("Recommends",),
    "suggests": ("Suggests",),
    "enhances": ("Enhances",),
    "breaks": ("Breaks",),
    "conflicts": ("Conflicts",),
    "replaces": ("Replaces",),
    "provides": ("Provides",),
    "built_using": ("Built-Using", "Static-Built-Using", "X-Cargo-Built-Using", "Javascript-Built-Using"),
}
_FOLDED = frozenset(field for fields in RELATIONS.values() for field in fields)
_FIELDS = _FOLDED | {"Package", "Source", "Section", "Description"}
_COMPRESSED = frozenset({".bz2", ".gz", ".lz4", ".lzma", ".xz", ".zst"})
_PACKAGE_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9+.\-]*)")
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Package:
    """The used fields of one stanza.

    `related` has the names in the fields of each of `RELATIONS`, with all alternatives, whether such packages (for
    built_using: such sources) exist or not. `source` is the name of the source package, or the package's own if the
    stanza names none. `section` is "" if missing.
    """

    name: str
    source: str
    section: str
    description: str
    related: Mapping[str, tuple[str, ...]]


def read_stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the used fields of each stanza of a `Packages` index.

    Blank lines separate stanzas. A line that begins with white space continues the field above. Such lines
    are kept for dependencies and dropped for the description: only its first line is used.
    """
    stanza: dict[str, str] = {}
    field = ""
    for line in lines:
        if not line.strip():
            if stanza:
                yield stanza
            stanza, field = {}, ""
        elif line[0] in " \t":
            if field in _FOLDED:
                stanza[field] += " " + line.strip()
        else:
            field, _, value = line.partition(":")
            if field in _FIELDS:
                stanza[field] = value.strip()
    if stanza:
        yield stanza


def dependency_names(field: str) -> list[str]:
    """Return the package names in a Depends field, every alternative, in the order of the field.

    >>> dependency_names("libc6 (>= 2.34), python3:any | pypy3, default-mta")
    ['libc6', 'python3', 'pypy3', 'default-mta']
    """
    matches = (_PACKAGE_NAME.match(choice) for choice in re.split(r"[,|]", field))
    return [match.group(1) for match in matches if match]


def read_packages(lines: Iterable[str]) -> list[Package]:
    """Return the packages of an index, sorted by name. Of several stanzas with one name the first counts.

    Raises:
        ValueError: The index has no packages, or a stanza has no `Package` field.
    """
    packages: dict[str, Package] = {}
    for number, stanza in enumerate(read_stanzas(lines)):
        name = stanza.get("Package", "")
        if not name:
            raise ValueError(
                f"make_debian_packages: stanza {number} of the index has no Package field, found "
                f"{sorted(stanza)}; every stanza needs one. Give a Packages index, not another file."
            )
        related = {
            relation: tuple(dependency_names(", ".join(stanza[field] for field in fields if field in stanza)))
            for relation, fields in RELATIONS.items()
        }
        source = stanza.get("Source", "").split("(")[0].strip()
        packages.setdefault(
            name,
            Package(
                name=name,
                source=source or name,
                section=stanza.get("Section", "").rpartition("/")[2],
                description=stanza.get("Description", ""),
                related=related,
            ),
        )
    if not packages:
        raise ValueError(
            "make_debian_packages: found no packages in the index, at least one is needed. "
            "Run apt-get update, or give another file with --packages."
        )
    return [packages[name] for name in sorted(packages)]


def description_words(description: str) -> set[str]:
    """Return the words of a description that may become features: two characters or more, one a letter.

    >>> sorted(description_words("Real-time strategy game, 2nd edition of 1999 (a C++ port)"))
    ['2nd', 'edition', 'game', 'port', 'real', 'strategy', 'time']
    """
    words = _WORD.findall(description.lower())
    return {word for word in words if len(word) >= 2 and not word.isdigit()} - STOP_WORDS


def split_of(source: str) -> int:
    """Return 0, 1 or 2 (train, validation, test) for a source package, by a hash of its name alone."""
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    return int(place >= TRAIN_SHARE) + int(place >= TRAIN_SHARE + VALIDATION_SHARE)


def make_arrays(
    packages: Sequence[Package], *, release: str = DEFAULT_RELEASE, min_descriptions: int = MIN_DESCRIPTIONS
) -> dict[str, np.ndarray]:
    """Return the arrays of the data set, by the names they have in the file.

    Args:
        packages: As from `read_packages`, sorted by name, each name once.
        release: The release of the index, stored as given.
        min_descriptions: In how many descriptions a word must occur to become a feature.
    Returns:
        `format` and `release`, 0-d text; `depends_degree`[n] and `depends_ids`[edges], the ascending ids
        of the dependencies of each package; `word_degree`[n] and `word_ids`, the ascending ids of the
        words of each description; `vocabulary`, sorted; `label`[n], -1 for no section; `class_names`,
        sorted; `split`[n], 0 train, 1 validation, 2 test. Degrees and ids have the smallest unsigned
        dtype that fits. O(size of the index).
    """
    ids = {package.name: number for number, package in enumerate(packages)}
    depends = [
        sorted({ids[name] for name in package.related["depends"] if name in ids} - {number})
        for number, package in enumerate(packages)
    ]
    words = [description_words(package.description) for package in packages]
    counts = Counter(word for found in words for word in found)
    vocabulary = sorted(word for word, count in counts.items() if count >= min_descriptions)
    word_ids = {word: number for number, word in enumerate(vocabulary)}
    bags = [sorted(word_ids[word] for word in found if word in word_ids) for found in words]
    class_names = sorted({package.section for package in packages} - {""})
    classes = {section: number for number, section in enumerate(class_names)} | {"": -1}
    return {
        "format": np.array(FORMAT),
        "release": np.array(release),
        "depends_degree": _smallest([len(row) for row in depends]),
        "depends_ids": _smallest([target for row in depends for target in row]),
        "word_degree": _smallest([len(row) for row in bags]),
        "word_ids": _smallest([word for row in bags for word in row]),
        "vocabulary": np.array(vocabulary, dtype=np.str_),
        "label": np.array([classes[package.section] for package in packages], dtype=np.int16),
        "class_names": np.array(class_names, dtype=np.str_),
        "split": np.array([split_of(package.source) for package in packages], dtype=np.uint8),
    }


def make_relations(packages: Sequence[Package], packages_file: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of the heterogeneous graph that those of `make_arrays` do not have.

    Args:
        packages: As for `make_arrays`.
        packages_file: The content of the file with the arrays of `make_arrays`.
    Returns:
        `format`, 0-d text; `packages_digest`, 0-d text, a digest of `packages_file`; `source`[n], the source of each
        package; for each relation R but built_using `R_package_degree`[n] and `R_package_ids`, `R_virtual_degree`[n]
        and `R_virtual_ids`, the ascending ids of the packages and virtual names that each package names there (the
        packages of depends are in the other file); `built_using_degree`[n] and `built_using_ids`, those of sources.
        Sources and virtual names are numbered in the order of their names. O(size of the index).
    """
    ids = {package.name: number for number, package in enumerate(packages)}
    sources = {name: number for number, name in enumerate(sorted({package.source for package in packages}))}
    virtual = {name: number for number, name in enumerate(virtual_names(packages))}
    arrays = {
        "format": np.array(RELATIONS_FORMAT),
        "packages_digest": np.array(digest_of(packages_file)),
        "source": _smallest([sources[package.source] for package in packages]),
    }
    for relation in RELATIONS:
        kinds = {"": sources} if relation == "built_using" else {"_package": ids, "_virtual": virtual}
        if relation == "depends":
            del kinds["_package"]
        for kind, known in kinds.items():
            named = [{known[name] for name in package.related[relation] if name in known} for package in packages]
            rows = [sorted(row - {number} if known is ids else row) for number, row in enumerate(named)]
            arrays[f"{relation}{kind}_degree"] = _smallest([len(row) for row in rows])
            arrays[f"{relation}{kind}_ids"] = _smallest([target for row in rows for target in row])
    return arrays


def virtual_names(packages: Sequence[Package]) -> list[str]:
    """Return the names that have no stanza, that a package provides, and that at least two packages name; sorted."""
    named = Counter(
        name
        for package in packages
        for name in {name for relation in RELATIONS if relation != "built_using" for name in package.related[relation]}
    )
    provided = {name for package in packages for name in package.related["provides"]}
    return sorted(name for name in provided - {package.name for package in packages} if named[name] >= 2)


def digest_of(content: bytes) -> str:
    """Return a digest of the bytes of a file, as text."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _smallest(numbers: Sequence[int]) -> np.ndarray:
    """Return non-negative numbers as an array of the smallest unsigned dtype that holds them."""
    dtype = np.min_scalar_type(max(numbers, default=0)).newbyteorder("<")
    return np.array(numbers, dtype=dtype)


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> int:
    """Write arrays as a deflated npz whose bytes depend only on the arrays; return its size in bytes.

    Raises:
        ValueError: The file would exceed `MAX_FILE_BYTES`. Raised before anything is written.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    size = len(packed.getvalue())
    if size > MAX_FILE_BYTES:
        raise ValueError(
            f"make_debian_packages: the file would have {size} bytes, at most {MAX_FILE_BYTES} are allowed. "
            "Raise MIN_DESCRIPTIONS, or give a smaller index."
        )
    path.write_bytes(packed.getvalue())
    return size


def default_index() -> Path:
    """Return the path where apt keeps the index of bookworm main for amd64.

    Raises:
        FileNotFoundError: There is no such file.
    """
    found = sorted(LISTS_FOLDER.glob(LISTS_PATTERN))
    if not found:
        raise FileNotFoundError(
            f"make_debian_packages: no file {LISTS_PATTERN} in {LISTS_FOLDER}. Run apt-get update on "
            "Debian 12, or give an index with --packages."
        )
    return found[0]


def read_lines(path: Path) -> list[str]:
    """Return the lines of an index. A compressed file is read with apt-helper."""
    if path.suffix in _COMPRESSED:
        command = [APT_HELPER, "cat-file", str(path)]
        content = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    else:
        content = path.read_bytes()
    return content.decode("utf-8").split("\n")


def release_of(path: Path) -> str:
    """Return the release and date of an index that apt keeps, from the InRelease file beside it.

    Returns `DEFAULT_RELEASE` if there is no such file or it lacks the fields.
    """
    stem, marker, _ = path.name.partition("_main_binary-amd64_Packages")
    signed = path.with_name(f"{stem}_InRelease")
    if not marker or not signed.is_file():
        return DEFAULT_RELEASE
    fields = dict(re.findall(r"^(Version|Codename|Date): *(.+?) *$", signed.read_text("utf-8"), re.MULTILINE))
    if len(fields) < 3:
        return DEFAULT_RELEASE
    return f"Debian {fields['Version']} ({fields['Codename']}) main amd64, {fields['Date']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the file that the command line asks for, and print its counts."""
    parser = argparse.ArgumentParser(prog="make_debian_packages", description="Make the embedded data set.")
    parser.add_argument("--packages", type=Path, help="a Packages index (default: apt's own)")
    parser.add_argument("out", type=Path, metavar="OUT.npz")
    parser.add_argument("relations", type=Path, metavar="RELATIONS.npz", nargs="?", help="for the heterogeneous graph")
    options = parser.parse_args(arguments)
    index = options.packages or default_index()
    packages = read_packages(read_lines(index))
    arrays = make_arrays(packages, release=release_of(index))
    size = write_npz(options.out, arrays)
    print(
        f"{arrays['release']}: {len(arrays['label'])} packages, {len(arrays['depends_ids'])} depends edges, "
        f"{len(arrays['vocabulary'])} words, {len(arrays['class_names'])} classes, "
        f"split {np.bincount(arrays['split'], minlength=3).tolist()}, {size} bytes"
    )
    if options.relations is not None:
        arrays = make_relations(packages, options.out.read_bytes())
        size = write_npz(options.relations, arrays)
        counts = {name.removesuffix("_ids"): len(array) for name, array in arrays.items() if name.endswith("_ids")}
        print(f"relations: {counts}, {arrays['source'].max() + 1} sources, {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
