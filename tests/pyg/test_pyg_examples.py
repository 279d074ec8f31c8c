"""examples/pyg: each script trains on little data, prints a figure above chance, and names datapipes in one import."""

import ast
import gzip
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from amounts import ranked
from example_data import EXAMPLES, write_ring
from scripts import Ended, run_program

SHARED = Path(os.environ.get("DATAPIPES_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
FOLDER = EXAMPLES / "pyg"
PAGE = EXAMPLES.parent / "docs" / "migrate" / "pyg.md"


def ring(tmp_path: Path) -> Path:
    return write_ring(tmp_path / "ring.npz", 400)


def first_messages(tmp_path: Path) -> Path:
    with gzip.open(shared("collegemsg") / "CollegeMsg.txt.gz", "rb") as file:
        (tmp_path / "CollegeMsg.txt").write_bytes(b"".join(file.readline() for _ in range(2500)))
    return tmp_path / "CollegeMsg.txt"


def shared(name: str) -> Path:
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} is not there")
    return SHARED / name


# {script: (epochs, what always the commonest class gives, the data: by a function, in a folder, or None)}.
# `make test` runs the first two.
SCRIPTS = {
    "reddit": (60, 0.5, ring),
    "temporal_links": (1, 0.5, first_messages),
    "unsupervised_sage": (1, 0.319, "cora"),
    "products_sage": (4, 0.261, "amazon_photo"),
    "to_hetero": (4, 0.484, "acm_heco"),
    "bipartite_links": (1, 0.5, "acm_heco"),
    "lightning_sage": (1, 0.096, None),
    "inference": (1, 0.096, None),
    "relbench_churn": (2, 0.5, None),
    "hierarchical_sampling": (1, 0.5, "minesweeper"),
    "infomax_inductive": (1, 0.231, "citeseer"),
    "hierarchical_hetero": (2, 0.417, "aifb"),
    "sgformer_trees": (2, 0.319, "cora"),
    "signed_links": (1, 0.5, "bitcoin_otc"),
    "distributed_sampling": (4, 0.261, "amazon_photo"),
}
TIMES_OF_EDGES = ("temporal_links", "signed_links")


def run(name: str, loader: str, tmp_path: Path) -> Ended:
    for package in (
        "torch_geometric",
        *{"lightning_sage": ["lightning"], "relbench_churn": ["relbench"]}.get(name, []),
    ):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    epochs, _, data = SCRIPTS[name]
    arguments = ["--loader", loader, "--epochs", str(epochs)]
    if data is not None:
        arguments += ["--data", str(shared(data) if isinstance(data, str) else data(tmp_path))]
    return run_program(FOLDER / f"{name}.py", *arguments, folder=Path.cwd(), timeout_s=120)


def assert_learned(name: str, done: Ended) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    figure = re.fullmatch(r"test (?:accuracy|AUC) (\d\.\d{4})", done.stdout.splitlines()[-1])
    assert SCRIPTS[name][1] < float(figure[1]) <= 1


@pytest.mark.parametrize("name", ranked(SCRIPTS, 1))
def test_a_script_of_pyg_trains_with_our_loader(name, tmp_path):
    assert_learned(name, run(name, "datapipes", tmp_path))


@pytest.mark.parametrize("name", ranked(SCRIPTS, 0))
def test_the_same_script_trains_with_pygs_loader(name, tmp_path):
    if find_spec("pyg_lib") is None and find_spec("torch_sparse") is None:
        pytest.skip("PyG samples with pyg-lib or torch-sparse, and neither is installed")
    done = run(name, "pyg", tmp_path)
    if name in TIMES_OF_EDGES and find_spec("pyg_lib") is None:
        assert done.returncode != 0  # torch-sparse does not sample by times of edges
        assert "ImportError" in done.stderr
    else:
        assert_learned(name, done)


def test_every_script_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SCRIPTS, "pyg_data"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_says_what_a_script_reaches_and_after_how_many_epochs(name):
    (row,) = re.findall(rf"^\| \[`{name}`\].*\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ours, theirs = re.findall(r"(\d\.\d{4}) \((\d\.\d{4}) to (\d\.\d{4})\)", row)
    assert all(
        SCRIPTS[name][1] < float(lowest) <= float(mean) <= float(highest) for mean, lowest, highest in (ours, theirs)
    )
    (epochs,) = re.findall(
        r"^args = arguments\(__doc__, epochs=(\d+),", (FOLDER / f"{name}.py").read_text(), re.MULTILINE
    )
    assert row.split("|")[4].strip() == epochs


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_one_import_differs_between_the_loaders(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    body = ast.parse(text).body
    branches = [statement for statement in body if isinstance(statement, ast.If)]
    (branch,) = (branch for branch in branches if ast.unparse(branch.test) != "__name__ == '__main__'")
    (ours,), (theirs,) = branch.body, branch.orelse
    assert ast.unparse(branch.test) == "args.loader == 'datapipes'"
    assert isinstance(ours, ast.ImportFrom)
    assert isinstance(theirs, ast.ImportFrom)
    assert (ours.module.split(".", 2)[0], theirs.module.split(".", 2)[0]) == ("datapipes", "torch_geometric")
    assert ours.module.rpartition(".")[2] == theirs.module.rpartition(".")[2]
    assert [(each.name, each.asname) for each in ours.names] == [(each.name, each.asname) for each in theirs.names]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "datapipes" in line]
    after_docstring = [number for number in lines if number > body[0].end_lineno]
    assert after_docstring == [branch.lineno, ours.lineno]
