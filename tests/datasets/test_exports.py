"""Files that other programs write, under the names of their columns; damaged ones end in typed errors."""

import contextlib
import gzip
import io
import random

import numpy as np
import pytest
import torch
from amounts import amount

import datapipes as dp
from datapipes.datasets import DatasetFormatError

GEPHI_EDGES = "Source,Target,Type,Id,Label,Weight\na,b,{kind},0,,1.5\nb,c,{kind},1,x,2\nc,c,{kind},2,,3\n"
GEPHI_NODES = "Id,Label,size\nc,Carl,3\na,Anna,1\nb,Ben,2\nd,Dora,4\n"
NEO4J = {
    "persons.csv": """personId:ID(Person),name,born:int,:LABEL
p1,Keanu,1964,Actor
p2,Carrie,1967,Actor
p3,Lana,1965,Director
""",
    "movies.csv": "movieId:ID(Movie),title,year:int\n1,The Matrix,1999\n2,Speed,1994\n",
    "roles.csv": """:START_ID(Person),role,:END_ID(Movie),:TYPE
p1,Neo,1,ACTED_IN
p2,Trinity,1,ACTED_IN
p1,Jack,2,ACTED_IN
p3,,1,DIRECTED
p9,,1,ACTED_IN
""",
    "knows.csv": ":START_ID(Person),:END_ID(Person),:TYPE,since\np1,p2,KNOWS,1999\np1,p3,KNOWS,1998\n",
}
JODIE = """user_id,item_id,timestamp,state_label,comma_separated_list_of_features
0,0,0.0,0,0.5,-1
1,0,36.0,0,0.25,2
0,1,40.0,1,0,3
"""


def pairs(graph, edge_type=None):
    relation = graph.relation(edge_type)
    dst = np.repeat(np.arange(len(relation.indptr) - 1), relation.indptr.diff().numpy())
    rows = sorted(zip(relation.edge_ids.tolist(), relation.indices.tolist(), dst.tolist(), strict=True))
    return [(src, dst) for _, src, dst in rows]


def values(data, *key):
    return data.features[key].read(torch.arange(data.features[key].count)).tolist()


@pytest.mark.parametrize("kind", ["Directed", "Undirected"])
@pytest.mark.parametrize("with_nodes", [False, True])
def test_gephi(tmp_path, kind, with_nodes):
    (tmp_path / "edges.csv").write_text(GEPHI_EDGES.format(kind=kind))
    if with_nodes:
        (tmp_path / "nodes.csv").write_text(GEPHI_NODES)
    data = dp.datasets.open(tmp_path)
    names = [*data.node_names[None]]
    assert names == (["c", "a", "b", "d"] if with_nodes else ["a", "b", "c"])
    back = [("b", "a"), ("c", "b")] if kind == "Undirected" else []
    assert [(names[src], names[dst]) for src, dst in pairs(data.graph)] == [("a", "b"), ("b", "c"), ("c", "c"), *back]
    assert values(data, "edge", None, "Weight") == [1.5, 2, 3, *([1.5, 2] if back else [])]
    assert "Weight" in data.graph.edge_attributes
    if with_nodes:
        assert values(data, "node", None, "size") == [3, 1, 2, 4]


def test_a_graph_database(tmp_path):
    for name, text in NEO4J.items():
        (tmp_path / name).write_text(text)
    data = dp.datasets.open(tmp_path)
    assert {kind: [*names] for kind, names in data.node_names.items()} == {
        "movies": ["1", "2"],
        "Actor": ["p1", "p2"],
        "Director": ["p3"],
    }
    graph = data.graph
    assert pairs(graph, ("Actor", "ACTED_IN", "movies")) == [(0, 0), (1, 0), (0, 1)]
    assert pairs(graph, ("Director", "DIRECTED", "movies")) == [(0, 0)]
    assert pairs(graph, ("Actor", "Actor_KNOWS_Actor", "Actor")) == [(0, 1)]
    assert pairs(graph, ("Actor", "Actor_KNOWS_Director", "Director")) == [(0, 0)]
    assert len(graph.edge_types) == 8  # and the reverses
    assert values(data, "node", "Actor", "born") == [1964, 1967]
    assert values(data, "edge", ("Actor", "Actor_KNOWS_Director", "Director"), "since") == [1998]
    assert data.left_out["roles.csv", ":TYPE"] == "ends that are no node: 1"


def test_jodie(tmp_path):
    (tmp_path / "wikipedia.csv").write_text(JODIE)
    for path in (tmp_path, tmp_path / "wikipedia.csv"):
        data = dp.datasets.open(path)
        kind = ("user", "interactions", "item")
        assert pairs(data.graph, kind) == [(0, 0), (1, 0), (0, 1)]
        assert data.graph.relation(kind).edge_attributes["time"].tolist() == [0, 36, 40]
        assert values(data, "edge", kind, "feat") == [[0.5, -1], [0.25, 2], [0, 3]]
        assert values(data, "edge", kind, "state_label") == [0, 0, 1]
        assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [2, 1, 0]
        assert data.training_graph.num_edges_of(kind) == 2


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".npz"])
@pytest.mark.parametrize("shape", [(4, 4), (4, 3)], ids=["square", "rectangular"])
def test_matrices(tmp_path, suffix, shape):
    scipy_io, sparse = pytest.importorskip("scipy.io"), pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_matrix(([1.5, 2.5, 3.5], ([0, 3, 3], [2, 0, 1])), shape)
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        sparse.save_npz(path, matrix.tocsr() if shape == (4, 4) else matrix.tocsc())
    else:
        content = io.BytesIO()
        scipy_io.mmwrite(content, matrix)
        path.write_bytes(gzip.compress(content.getvalue()) if suffix.endswith(".gz") else content.getvalue())
    data = dp.datasets.open(path)
    kind = None if shape == (4, 4) else ("row", "entries", "column")
    weights = values(data, "edge", kind, "weight")
    assert sorted(zip(pairs(data.graph, kind), weights, strict=True)) == [((0, 2), 1.5), ((3, 0), 2.5), ((3, 1), 3.5)]
    assert [data.graph.num_nodes_of(kind) for kind in data.graph.node_types] == ([4] if kind is None else [3, 4])


@pytest.mark.parametrize(
    ("form", "entries"),
    [
        ("pattern general", [((0, 1), 1), ((2, 2), 1)]),
        ("integer symmetric", [((0, 1), 5), ((1, 0), 5), ((2, 2), 7)]),
        ("real skew-symmetric", [((0, 1), 5), ((1, 0), -5), ((2, 2), 7)]),
    ],
)
def test_forms_of_matrix_market(tmp_path, form, entries):
    cells = ("", "") if form.startswith("pattern") else (" 5", " 7")
    text = f"%%MatrixMarket matrix coordinate {form}\n% made\n\n3 3 2\n1 2{cells[0]}\n3 3{cells[1]}\n"
    (tmp_path / "a.mtx").write_text(text)
    data = dp.datasets.open(tmp_path)
    assert sorted(zip(pairs(data.graph), values(data, "edge", None, "weight"), strict=True)) == entries


def test_a_list_with_names_of_its_own(tmp_path):
    (tmp_path / "trade.csv").write_text("at,to,from,amount\n3,b,a,1.5\n1,a,c,2\n2,b,c,4\n")
    columns = {"src": "from", "dst": "to", "time": "at", "weight": "amount"}
    data = dp.datasets.open(tmp_path, columns=columns)
    assert [*data.node_names[None]] == ["a", "b", "c"]
    assert pairs(data.graph) == [(0, 1), (2, 0), (2, 1)]
    assert data.graph.relation(None).edge_attributes["time"].tolist() == [1, 3, 2]  # in the order of the graph
    assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [2, 1, 0]
    assert data.training_graph.num_edges == 2
    whole = tmp_path / "otc.csv"
    whole.write_text("from,to,stars\na,b,-1\nb,a,3\n")
    rated = dp.datasets.open(whole, columns={"src": "from", "dst": "to", "rating": "stars"})
    assert (rated.task, rated.train_set[:][1].tolist()) == ("edge_regression", [-1, 3])
    whole.unlink()
    rated = dp.datasets.open(tmp_path, columns={"src": "from", "dst": "to", "rating": "amount"})
    assert (rated.task, rated.train_set[:][1].tolist()) == ("edge_regression", [1.5, 2, 4])


def test_comments_of_either_mark(tmp_path):
    (tmp_path / "a.txt").write_text("% KONECT\n# SNAP\n1 2\n2 3\n")
    assert dp.datasets.open(tmp_path).graph.num_edges == 2


# --- what is damaged


def written(folder):
    """The files of each format."""
    sparse, scipy_io = pytest.importorskip("scipy.sparse"), pytest.importorskip("scipy.io")
    matrix = sparse.coo_matrix(([1.5, 2.5], ([0, 3], [2, 0])), (4, 4))
    for name in ("gephi", "neo4j", "jodie", "market", "scipy"):
        (folder / name).mkdir()
    (folder / "gephi" / "edges.csv").write_text(GEPHI_EDGES.format(kind="Directed"))
    (folder / "gephi" / "nodes.csv").write_text(GEPHI_NODES)
    for name, text in NEO4J.items():
        (folder / "neo4j" / name).write_text(text)
    (folder / "jodie" / "a.csv").write_text(JODIE)
    scipy_io.mmwrite(folder / "market" / "a.mtx", matrix)
    sparse.save_npz(folder / "scipy" / "a.npz", matrix.tocsr())
    return {path: sorted(path.iterdir()) for path in sorted(folder.iterdir())}


def test_mutated_files_are_read_or_end_in_typed_errors(tmp_path):
    drawn, num_errors = random.Random(0), 0
    folders = written(tmp_path)
    for turn in range(amount(2_000, 200)):
        folder = [*folders][turn % len(folders)]
        path = drawn.choice(folders[folder])
        whole = path.read_bytes()
        content = bytearray(whole)
        for _ in range(drawn.randrange(1, 4)):
            place = drawn.randrange(len(content) + 1)
            match drawn.randrange(4):
                case 0:
                    content[place : place + 1] = bytes([drawn.choice(b"0,\n\"'x-:()%#\xff\x00 9")])
                case 1:
                    del content[place : place + drawn.randrange(8)]
                case 2:
                    content[place:place] = content[drawn.randrange(len(content) + 1) :][:9]
                case 3:
                    del content[place:]
        path.write_bytes(content)
        num_errors += 1
        with contextlib.suppress(ValueError, OSError, MemoryError):
            dp.datasets.open(folder)
            num_errors -= 1
        path.write_bytes(whole)
    assert num_errors > 30


@pytest.mark.parametrize("as_folder", [False, True])
def test_damaged_gzip_has_a_typed_error(tmp_path, as_folder):
    content = bytearray(gzip.compress(b"Source,Target\n" + b"1,2\n" * 1000))
    content[10:30] = bytes(20)
    (tmp_path / "edges.csv.gz").write_bytes(content)
    with pytest.raises((DatasetFormatError, ValueError), match=r"edges\.csv\.gz|no nodes\.csv"):
        dp.datasets.open(tmp_path if as_folder else tmp_path / "edges.csv.gz")


def test_what_these_readers_refuse(tmp_path, refuses):
    def opened(files, **arguments):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return dp.datasets.open(folder, **arguments)

    mixed = GEPHI_EDGES.format(kind="Directed").replace("Directed,1", "Undirected,1")
    trade = {"trade.csv": "from,to\na,b\n"}
    for files, arguments in (
        ({"edges.csv": mixed}, {}),
        ({**NEO4J, "more.csv": NEO4J["movies.csv"]}, {}),
        ({name: NEO4J[name] for name in ("movies.csv", "roles.csv")}, {}),
        ({"a.csv": JODIE.replace("36.0", "36.5")}, {}),
        ({"a.csv": JODIE.replace("1,0,36.0", "1,0")}, {}),
        ({"a.csv": "\n".join(line[:9] for line in JODIE.splitlines())}, {}),
        ({"a.mtx": "%%MatrixMarket matrix array real general\n1 1\n1\n"}, {}),
        ({"a.mtx": "no matrix"}, {}),
        ({"a.mtx": "%%MatrixMarket matrix coordinate real general\n2 2 1\n1.9 2.2 5.5\n"}, {}),
        ({"a.mtx": f"%%MatrixMarket matrix coordinate real general\n{10**17} 2 0\n"}, {}),
        (trade, {"columns": {"src": "from"}}),
        (trade, {"columns": {"src": "from", "dst": "to", "colour": "x"}}),
        (trade, {"columns": {"src": "from", "dst": "where"}}),
        ({"a.csv": "u,v,r\n1,2,2024-01-01\n"}, {"columns": {"src": "u", "dst": "v", "rating": "r"}}),
        (
            {
                "a.csv": "id:ID,x:int,:LABEL\na,1,P\n",
                "b.csv": "id:ID,x:string,:LABEL\nb,c,P\n",
                "c.csv": ":START_ID,:END_ID\na,b\n",
            },
            {},
        ),
        ({"trade.csv": "from,to,at\na,b,soon\n"}, {"columns": {"src": "from", "dst": "to", "time": "at"}}),
    ):
        refuses((ValueError, DatasetFormatError), opened, files, **arguments)
