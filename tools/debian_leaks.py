"""How much does a node type alone tell of a package's section? What tells nearly all would be the label in disguise.

Run: python tools/debian_leaks.py [--packages FILE]

Method: naive Bayes over what a package names (its words, its maintainer, the packages it depends on ...), counted in
the train part of the embedded data's split, with the smoothing of 0.01, 0.1 and 1 that is best on the validation part.
Prints for each: the share of test packages that name something known from the train part, the accuracy on all test
packages (the most frequent section where nothing is known), the accuracy on those that name something known; then the
same for the packages that name a virtual name.

Result (12,287 test packages, Debian 12.15):

    of a package                known  right  right where known  in the graph
    words of the description    1.000  0.612  0.613              yes, as the feature
    packages it depends on      0.775  0.491  0.626              yes, as in the homogeneous graph
    packages it recommends      0.122  0.161  0.554              yes
    virtual names               0.206  0.254  0.816              yes, without the names
    sources it was built using  0.030  0.106  0.319              yes, without the names
    its source                  0.000  0.096                     yes, without the name
    maintainer                  0.941  0.507  0.532              no
    tags                        0.483  0.367  0.761              no
    host of the homepage        0.690  0.279  0.365              no

The most frequent section alone is right for 0.096. The split is by source, so a source passes on words of its other
packages, never a label.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import make_debian_packages as maker
import numpy as np

FIELDS = frozenset({"Maintainer", "Tag", "Homepage"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, help="a Packages index (default: apt's own)")
    lines = maker.read_lines(parser.parse_args().packages or maker.default_index())
    packages = maker.read_packages(lines)
    arrays = maker.make_arrays(packages)
    labels, part = arrays["label"].astype(np.int64), arrays["split"]
    named = names_of(packages, more_fields(lines))
    with_virtual = np.array([bool(names) for names in named["virtual names"]])
    for title, chosen in (("all", part >= 0), ("those with a virtual name", with_virtual)):
        print(f"test packages, {title}: {(chosen & (part == 2)).sum()}")
        for kind, names in named.items():
            known, right, right_where_known = guess(names, labels, part, chosen)
            print(f"  {kind:22s} known {known:.3f}  right {right:.3f}  right where known {right_where_known:.3f}")


def more_fields(lines: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the fields that the maker leaves out, by package."""
    stanzas: dict[str, dict[str, str]] = {}
    for text in "\n".join(lines).split("\n\n"):
        unfolded = re.sub(r"\n[ \t]+", " ", text).strip().split("\n")
        fields = dict(line.split(":", 1) for line in unfolded if ":" in line)
        if "Package" in fields:
            kept = {name: value.strip() for name, value in fields.items() if name in FIELDS}
            stanzas.setdefault(fields["Package"].strip(), kept)
    return stanzas


def names_of(packages: Sequence[maker.Package], stanzas: dict[str, dict[str, str]]) -> dict[str, list[Collection[str]]]:
    """Return what each package names, by kind."""
    known, sources = {package.name for package in packages}, {package.source for package in packages}
    virtual = set(maker.virtual_names(packages))
    others = [stanzas[package.name] for package in packages]
    said = [maker.RELATIONS.keys() - {"built_using"}] * len(packages)
    return {
        "words": [maker.description_words(package.description) for package in packages],
        "maintainer": [{fields["Maintainer"]} for fields in others],
        "tags": [tags_of(fields.get("Tag", "")) for fields in others],
        "host of the homepage": [set(re.findall(r"//([^/]+)", fields.get("Homepage", ""))[:1]) for fields in others],
        "depends, packages": [known.intersection(package.related["depends"]) for package in packages],
        "recommends, packages": [known.intersection(package.related["recommends"]) for package in packages],
        "virtual names": [
            {f"{relation} {name}" for relation in relations for name in virtual.intersection(package.related[relation])}
            for package, relations in zip(packages, said, strict=True)
        ],
        "built_using, sources": [sources.intersection(package.related["built_using"]) for package in packages],
        "source": [{package.source} for package in packages],
    }


def tags_of(field: str) -> set[str]:
    """Return the tags in a Tag field.

    >>> sorted(tags_of("role::program, uitoolkit::{gtk,qt}"))
    ['role::program', 'uitoolkit::gtk', 'uitoolkit::qt']
    """
    found: set[str] = set()
    for facet, several, single in re.findall(r"([^\s,{]+::)(?:\{([^}]*)\}|([^\s,{]+))", field):
        found.update(facet + value for value in (several or single).split(","))
    return found


def guess(
    names: Sequence[Collection[str]], labels: np.ndarray, part: np.ndarray, chosen: np.ndarray
) -> tuple[float, float, float]:
    """Return the share of chosen test packages with known names, the share guessed right, and that of the known."""
    trained = (name for found, where in zip(names, part.tolist(), strict=True) if where == 0 for name in found)
    ids = {name: number for number, name in enumerate(dict.fromkeys(trained))}
    pairs = [(row, ids[name]) for row, found in enumerate(names) for name in found if name in ids]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    known = np.bincount(rows, minlength=len(labels)) > 0
    num_classes = labels.max() + 1
    prior = np.log(np.bincount(labels[part == 0], minlength=num_classes) + 1)
    counts = np.zeros((len(ids), num_classes))
    of_train = part[rows] == 0
    np.add.at(counts, (columns[of_train], labels[rows[of_train]]), 1)
    best, found = -1.0, (0.0, 0.0, 0.0)
    for smoothing in (0.01, 0.1, 1.0):
        likely = np.log((counts + smoothing) / (counts + smoothing).sum(axis=0))
        scores = np.tile(prior, (len(labels), 1))
        np.add.at(scores, rows, likely[columns])
        right = scores.argmax(axis=1) == labels
        validation, test = right[part == 1].mean(), chosen & (part == 2)
        if validation > best:
            where_known = right[test & known].mean() if (test & known).any() else 0.0
            best, found = validation, (known[test].mean(), right[test].mean(), where_known)
    return found


if __name__ == "__main__":
    main()
