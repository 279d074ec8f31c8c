"""The command as a whole: help, version, exit codes, errors, JSON, completion, and the real process."""

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from amounts import ranked
from command_files import done, npz_file, run, saved_graph
from pipelines import BOUND_S
from scripts import run_script

from datapipes.base.errors import DISTRIBUTION
from datapipes.cli import inspect

COMMANDS = ("build", "partition", "inspect", "convert", "report", "bench", "serve", "status", "doctor", "completion")
SCRIPT = Path(sys.executable).parent / "datapipes"


def process(*arguments: object, command=(SCRIPT,), **more) -> subprocess.CompletedProcess:
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=BOUND_S, **more)


# --- help, version, wrong usage


def test_help_names_all_commands_and_each_has_help_of_its_own(capsys):
    found = done(capsys, "--help")
    assert all(command in found.out for command in COMMANDS)
    for command in COMMANDS:
        found = done(capsys, command, "--help")
        assert found.out.startswith(f"usage: datapipes {command} ")


def test_version(capsys):
    expected = f"datapipes {version(DISTRIBUTION)}\n"
    assert run(capsys, "--version") == (0, expected, "")
    child = process("--version", command=(sys.executable, "-X", "importtime", SCRIPT))
    assert (child.returncode, child.stdout) == (0, expected)
    imported = re.findall(r"\| +([\w.]+)$", child.stderr, re.MULTILINE)
    assert "importlib.metadata" in imported
    assert not {"torch", "numpy", "datapipes"} & {*imported}


def test_what_the_command_refuses(capsys, command_refuses, tmp_path):
    assert run(capsys).err.startswith("usage: datapipes ")
    command_refuses(2)
    command_refuses(2, "paint")
    command_refuses(2, "inspect")
    command_refuses(2, "inspect", ".", "--jso")
    command_refuses(2, "inspect", ".", "--split", "x")
    command_refuses(2, "convert", "in")
    command_refuses(2, "completion", "cmd")
    command_refuses(1, "inspect", tmp_path / "nothing", "--json")
    for name in ("nothing", "num_parts", "a num_parts.npz", "insecure", "part"):  # names of the user's stay
        command_refuses(1, "inspect", tmp_path / name)
    graph = saved_graph(tmp_path / "graph")
    command_refuses(1, "partition", graph, tmp_path / "out", "--parts", 2, "--node-time-attr", "rng_seed", "--quiet")


def test_debug_adds_the_traceback(capsys, tmp_path):
    found = run(capsys, "inspect", tmp_path / "nothing", "--debug")
    assert found.code == 1
    assert "Traceback (most recent call last)" in found.err
    assert found.err.splitlines()[-1].startswith("datapipes inspect: datasets.open")


def raising(error: BaseException):
    def open_graph(path: Path) -> None:
        raise error

    return open_graph


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("a text\n   of two lines"), "a text of two lines"),
        (OSError(28, "No space left on device", "/disk"), "[Errno 28] No space left on device: '/disk'"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("odd"), "odd"),
    ],
)
def test_any_error_is_said_in_one_line(capsys, monkeypatch, tmp_path, error, said):
    monkeypatch.setattr(inspect, "open_graph", raising(error))
    found = run(capsys, "inspect", saved_graph(tmp_path / "g"))
    assert found == (1, "", f"datapipes inspect: {said}\n")


def test_ctrl_c_has_exit_code_130(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(inspect, "open_graph", raising(KeyboardInterrupt()))
    found = run(capsys, "inspect", saved_graph(tmp_path / "g"), "--json")
    assert found == (130, "", "datapipes inspect: interrupted\n")


def test_a_missing_extra_is_named(command_refuses, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    command_refuses(1, "completion", "bash")


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_script_of_a_shell_has_all_names_and_is_always_the_same(capsys, shell):
    found = done(capsys, "completion", shell)
    assert all(name in found.out for name in (*COMMANDS, "normalize-features", "inverse-relations"))
    assert {"bash": "compgen -d", "zsh": "_files -/", "tcsh": "n/inspect/f/"}[shell] in found.out
    assert run(capsys, "completion", shell) == found


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["insp"], ["inspect"]),
        (["inspect", "--jso"], ["--json"]),
        (["inspect", "ring"], ["ring.npz"]),
        (["convert", "ring.npz", "fol"], ["folder"]),
        (["completion", "t"], ["tcsh"]),
        (["partition", "--method", "met"], ["metis"]),
    ],
)
def test_bash_completes_commands_options_files_and_folders(capsys, tmp_path, typed, offered):
    script = run(capsys, "completion", "bash").out
    npz_file(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folio.txt").touch()
    words = " ".join(["datapipes", *typed])
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; COMPREPLY=(); _shtab_datapipes; echo ${{COMPREPLY[@]}}"
    (tmp_path / "completion.sh").write_text(f"{script}\n{ask}\n")
    shell = process("--norc", "completion.sh", command=("bash",), cwd=tmp_path)
    assert (shell.stdout.split(), shell.stderr) == (offered, "")


# --- the real process


def test_the_installed_command(tmp_path):
    found = process("inspect", saved_graph(tmp_path / "g"), "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["kind"] == "graph"


def test_the_module_is_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["datapipes.cli", "inspect", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("datapipes.cli", run_name="__main__")
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("datapipes inspect: datasets.open: ")


CTRL_C = """
import signal, sys, time
from datapipes.cli import inspect
from datapipes.cli.main import main

def wait(path):
    signal.raise_signal(signal.SIGINT)
    time.sleep(60)

inspect.open_graph = wait
sys.exit(main(["inspect", {folder!r}]))
"""


def test_ctrl_c_ends_the_process(tmp_path):
    ended = run_script(CTRL_C.format(folder=str(saved_graph(tmp_path / "g"))))
    assert ended == (130, "", "datapipes inspect: interrupted\n")


GONE = """
import os, sys
from datapipes.cli.main import main

reads, writes = os.pipe()
os.dup2(writes, 1)
os.close(reads), os.close(writes)
sys.exit(main(["completion", "bash"]))
"""


def test_a_reader_that_has_gone_is_no_traceback():
    assert run_script(GONE) == (1, "", "")


@pytest.mark.parametrize("command", ranked(["result", "json", "error", "version"], 1))
def test_a_full_disk_below_stdout_is_one_line_on_stderr(tmp_path, command):
    given = saved_graph(tmp_path / "graph")
    arguments, said = {
        "result": (["inspect", given], "datapipes inspect: stdout cannot be written: No space left on device"),
        "json": (["inspect", given, "--json"], "datapipes inspect: stdout cannot be written: No space left on device"),
        "error": (["inspect", tmp_path / "missing", "--json"], "datapipes inspect: "),
        "version": (["--version"], "datapipes: stdout cannot be written: No space left on device"),
    }[command]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # argparse tells no error
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [SCRIPT, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=BOUND_S, env=env
        )
    assert (found.returncode, found.stderr.count("\n")) == (1, 1), found.stderr
    assert found.stderr.startswith(said)
    assert ("missing" in found.stderr) == (command == "error")


CLOSED = """
import os, sys
from datapipes.cli.main import main

closed, arguments = {closed!r}, {arguments!r}
for number, name in enumerate(("stdin", "stdout", "stderr")):
    if name in closed:  # as Python finds it in a process that was started without
        os.close(number)
        setattr(sys, name, None)
code = main(arguments)
left = os.open(os.devnull, os.O_RDONLY)
assert left > 2, "a file that the command opens would take the place of a stream"
sys.exit(code)
"""


@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdin", "stdout", "stderr"]])
@pytest.mark.parametrize("command", ["result", "error", "wrong", "help", "version", "partition"])
def test_a_standard_stream_that_is_closed_gives_no_traceback_and_no_text_in_the_json(tmp_path, closed, command):
    given = str(saved_graph(tmp_path / "graph"))
    arguments, code = {
        "result": (["inspect", given, "--json"], 0),
        "error": (["inspect", str(tmp_path / "missing"), "--json"], 1),
        "wrong": (["inspect"], 2),
        "help": (["--help"], 0),
        "version": (["--version"], 0),
        "partition": (["partition", given, str(tmp_path / "parts"), "--parts", "2", "--method", "random", "--json"], 0),
    }[command]
    found = run_script(CLOSED.format(closed=closed, arguments=arguments))
    assert "Traceback" not in found.stderr + found.stdout
    if "stdout" not in closed:
        assert found.returncode == code
        assert command not in ("result", "error", "partition") or json.loads(found.stdout)["command"] == arguments[0]
    else:
        assert (found.returncode, found.stdout) == (code or 1, "")
        assert "stderr" in closed or code > 0 or found.stderr.endswith("Direct it to a file, on a disk with room.\n")


@pytest.mark.full
def test_a_full_disk_below_stderr_leaves_the_result(tmp_path):
    given = saved_graph(tmp_path / "graph")
    with open("/dev/full", "w") as full:
        command = [SCRIPT, "partition", given, tmp_path / "parts", "--parts", "2", "--method", "random", "--json"]
        found = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=full, text=True, timeout=BOUND_S)
    assert found.returncode == 0
    assert json.loads(found.stdout)["report"]["num_parts"] == 2
