"""What `datapipes report` prints and writes, and what it refuses."""

import pytest
from command_files import done, run
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
    found = done(capsys, "report", folder / "trace.json", "--json")
    assert found.json["stats"] == stats
    assert found.json["bottleneck"]["cause"] == stats.found.cause


def test_what_report_refuses(capsys, command_refuses, traced, tmp_path):
    trace = traced[0] / "trace.json"
    cut = tmp_path / "cut.json"
    cut.write_bytes(trace.read_bytes()[:10])
    for path in (cut, tmp_path / "none.json", tmp_path):
        command_refuses(1, "report", path)
    for page in (tmp_path, tmp_path / "nowhere" / "report.html"):  # before the trace is read
        command_refuses(2, "report", tmp_path / "none.json", "--html", page)
    command_refuses(2, "report", trace, "--html", trace)
    dp.DataLoader(fetched()).trace(tmp_path / "trace.json")
    assert run(capsys, "report", tmp_path / "trace.json") == (0, "no minibatches yet\n", "")
    command_refuses(1, "report", tmp_path / "trace.json", "--html", tmp_path / "report.html")
