"""Small files that the commands read, and one run of the command in this process."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from hetero_graphs import full_library

import datapipes as dp
from datapipes.cli.main import main

TRIPLES = "".join(
    f"<http://x/{subject}> <http://x/{relation}> <http://x/{other}> .\n"
    for subject, relation, other in [("ann", "knows", "bob"), ("bob", "knows", "ann"), ("ann", "likes", "tea")]
)


class Ran(NamedTuple):
    """How the command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


def run(capsys, *arguments: object) -> Ran:
    """Run the command in this process."""
    capsys.readouterr()
    code = main([str(each) for each in arguments])
    return Ran(code, *capsys.readouterr())


def done(capsys, *arguments: object) -> Ran:
    """Run the command, which does its work and says nothing on stderr."""
    result = run(capsys, *arguments)
    assert (result.code, result.err) == (0, "")
    return result


def npz_file(folder: Path) -> Path:
    """A data set in the layout of heterophilous-graphs: 6 nodes in a ring, two classes, two splits."""
    folder.mkdir(parents=True, exist_ok=True)
    place = np.arange(6)
    masks = {
        f"{name}_masks": np.stack([(place + split) % 3 == number for split in range(2)])
        for number, name in enumerate(("train", "val", "test"))
    }
    np.savez(
        folder / "ring.npz",
        node_features=np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2),
        node_labels=place % 2,
        edges=np.stack((place, (place + 1) % 6), axis=1),
        **masks,
    )
    return folder / "ring.npz"


def rdf_folder(folder: Path) -> Path:
    """A data set with types: two people, of whom one trains and one tests."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny_stripped.nt.gz").write_bytes(gzip.compress(TRIPLES.encode()))
    for name, person, group in (("training", "ann", "a"), ("test", "bob", "b")):
        text = f"person\tid\tlabel_affiliation\nhttp://x/{person}\t1\thttp://x/{group}\n"
        (folder / f"{name}Set.tsv").write_text(text)
    return folder


def link_file(folder: Path) -> Path:
    """A temporal edge list, whose items are links."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "talk.txt").write_text("src dst time\n" + "".join(f"{i % 4} {(i + 1) % 5} {i}\n" for i in range(20)))
    return folder / "talk.txt"


def saved_graph(folder: Path) -> Path:
    """A saved graph without types: 5 nodes, 8 edges, a mask of training nodes and an edge attribute."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 3], [1, 2, 0, 4, 3, 2, 1, 2]])
    mask = torch.tensor([True, False, True, False, False])
    graph = dp.CSCGraph.from_edge_index(
        edges,
        5,
        node_attributes={"train_mask": mask, "time": torch.arange(5)},
        edge_attributes={"w": torch.arange(8.0).reshape(8, 1)},
    )
    graph.save(folder)
    return folder


def saved_library(folder: Path) -> Path:
    """A saved graph with types."""
    full_library().save(folder)
    return folder
