"""What `datapipes report` prints and writes, and what it refuses."""

import pytest
from command_files import run
from pipelines import fetched

import datapipes as dp


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A loader whose trace is in the folder, with its report."""
    folder = tmp_path_factory.mktemp("traced")
    with dp.DataLoader(fetched()) as loader:
        list(loader)
        loader.trace(folder / "trace.json")
        loader.report(folder / "expected.html")
        return folder, loader.stats()


def test_a_trace_is_reported_as_its_loader_would(capsys, traced, tmp_path):
    folder, stats = traced
    found = run(capsys, "report", folder / "trace.json", "--html", tmp_path / "report.html")
    assert found == (0, f"{stats}\n", "")
    assert (tmp_path / "report.html").read_bytes() == (folder / "expected.html").read_bytes()
    found = run(capsys, "report", folder / "trace.json", "--json")
    assert (found.code, found.err) == (0, "")
    assert found.json["stats"] == stats
    assert found.json["bottleneck"]["cause"] == stats.found.cause


def test_what_is_no_whole_trace_is_refused_in_a_line(capsys, traced, tmp_path):
    folder, _ = traced
    cut = tmp_path / "cut.json"
    cut.write_bytes((folder / "trace.json").read_bytes()[:-40])
    for path, said in [
        (cut, "may be cut off"),
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "is a folder"),
    ]:
        found = run(capsys, "report", path)
        assert (found.code, found.out) == (1, "")
        assert found.err.startswith("datapipes report: ")
        assert found.err.count("\n") == 1
        assert said in found.err


def test_a_page_that_cannot_be_written_is_refused_before_the_trace_is_read(capsys, tmp_path):
    for page in (tmp_path, tmp_path / "nowhere" / "report.html"):
        found = run(capsys, "report", tmp_path / "none.json", "--html", page)
        assert (found.code, found.out) == (2, "")
        assert "--html" in found.err


def test_the_trace_itself_is_not_replaced(capsys, traced):
    folder, _ = traced
    found = run(capsys, "report", folder / "trace.json", "--html", folder / "trace.json")
    assert (found.code, "is the trace itself" in found.err) == (2, True)


def test_a_trace_without_minibatches_has_no_page(capsys, tmp_path):
    dp.DataLoader(fetched()).trace(tmp_path / "trace.json")
    assert run(capsys, "report", tmp_path / "trace.json") == (0, "no minibatches yet\n", "")
    found = run(capsys, "report", tmp_path / "trace.json", "--html", tmp_path / "report.html")
    assert (found.code, "no minibatch was delivered" in found.err) == (1, True)
