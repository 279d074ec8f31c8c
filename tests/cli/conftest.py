"""A fixture of the commands: what the command refuses, with the whole text, which tests/refusals.json holds."""

import re
from collections.abc import Callable

import pytest
from command_files import run
from refusals import Refuses


class Failed(Exception):
    """Exit code 1."""


class WrongUsage(Exception):
    """Exit code 2."""


def _ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
    """Run the command, and raise what it says in one line on stderr; stdout has nothing, or with --json the error."""
    result = run(capsys, *arguments)
    assert result.code in (1, 2)
    usage, _, text = result.err.removesuffix("\n").rpartition("\n")
    assert usage == "" or (usage.startswith("usage: datapipes ") and result.code == 2)
    assert text.startswith("datapipes")
    if "--json" in arguments and result.code == 1:
        said = result.json["error"]["message"]
        assert text == f"datapipes {arguments[0]}: {said}"
        text = f"{result.json['error']['type']}: {said}"
    else:
        assert result.out == ""
    text = re.sub(r"\(choose from .*\)", "(choose from ...)", text)  # Python 3.12 quotes no choices
    raise {1: Failed, 2: WrongUsage}[result.code](text)


@pytest.fixture
def command_refuses(capsys: pytest.CaptureFixture[str], refuses: Refuses) -> Callable[..., None]:
    """A function that runs the command with arguments: it ends with the exit code, which is given first."""

    def run_refused(code: int, *arguments: object) -> None:
        refuses({1: Failed, 2: WrongUsage}[code], _ended, capsys, *arguments)

    return run_refused
