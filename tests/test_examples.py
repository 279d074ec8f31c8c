"""The examples that need no data: each runs with the command in its docstring and prints what it promises."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # none from another process either
    assert "leaked" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["shm", "mp"])
def test_the_channel_example_receives_an_epoch_leaves_one_and_shows_the_producers_error(kind):
    output = output_of("channel.py", "--channel", kind)
    batches = re.findall(r"^epoch (\d+), batch (\d+): features \(256, 64\), mean (\d+)$", output, re.MULTILINE)
    assert [tuple(map(int, batch)) for batch in batches] == [
        *((0, index, index) for index in range(6)),
        *((1, index, index) for index in range(3)),
    ]
    ended, left, failed = (output.index(text) for text in ("epoch 0 has ended", "left epoch 1", "the producer sent"))
    assert ended < left < failed
    assert "ValueError('there is no data for epoch 2')" in output
    assert "in make_batch" in output[failed:]  # the traceback of the producer
    counts = dict(re.findall(r"^  (\w+) +(\S+)$", output[output.rindex("ValueError") :], re.MULTILINE))
    if kind == "shm":
        assert 11 <= int(counts["messages"]) <= 15  # the last four may be dropped before they are sent
        assert [counts[name] for name in ("dropped", "unread", "held", "deaths")] == ["4", "0", "0", "0"]
    else:
        assert counts == {}


def test_the_channel_example_refuses_an_unknown_channel(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["channel.py", "--channel", "pigeon"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "channel.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "'pigeon'" in capsys.readouterr().err
