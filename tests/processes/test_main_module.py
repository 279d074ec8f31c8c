"""Classes of a notebook, programs without a guard or from stdin: told in a few lines when the loader is built."""

import gc
import runpy
import subprocess
import sys
import textwrap
import traceback
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import worker_stages as ws
from amounts import ranked
from pipelines import sampled
from scripts import SUPPORT

import datapipes as dp
from datapipes.processes import main_module

OWN = """
    class Own(dp.MiniBatchTransformer):
        def transform(self, minibatch): return minibatch

    def own(minibatch): return minibatch
"""


@pytest.fixture
def program(tmp_path):
    """Run a text as the main module, from a file in this process; return the names that it has defined."""

    def run(text: str) -> dict:
        path = tmp_path / "script.py"
        head = "import datapipes as dp\nfrom pipelines import sampled\n"
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
        return runpy.run_path(str(path), run_name="__main__")

    return run


@pytest.fixture
def notebook(monkeypatch):
    """Run a text as cells of a notebook: the main module has no file."""

    def run(text: str) -> dict:
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec("import datapipes as dp\nfrom pipelines import sampled\n" + textwrap.dedent(text), vars(module))
        return vars(module)

    return run


def build(chain: str, **options) -> str:
    """Return a line that builds a loader with workers."""
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"loader = dp.DataLoader({chain}, num_workers=1{given})\n"


# --- notebooks


@pytest.mark.parametrize("method", ranked([None, "spawn"], 1))
def test_what_stands_in_a_notebook_is_refused_when_the_loader_is_built(notebook, method, refuses):
    chains = ["Own(sampled())", "sampled().transform(own).copy_to('cpu')"]
    for chain in (*chains, "sampled().transform(functools.partial(max, Own))"):
        text = "import functools\n" + textwrap.dedent(OWN) + build(chain, multiprocessing_context=method)
        refuses(TypeError, notebook, text)
    prepare = notebook("def prepare(worker): pass")["prepare"]
    refuses(TypeError, dp.DataLoader, sampled(), 1, worker_init_fn=prepare)


@pytest.mark.parametrize("options", [{"worker_method": "thread"}, {"multiprocessing_context": "fork"}], ids=str)
def test_the_remedies_work_in_a_notebook(notebook, options):
    found = notebook(OWN + textwrap.indent(build("Own(sampled())", **options), "    "))
    with found["loader"] as loader:
        assert len(list(loader)) == 6


def test_classes_of_modules_need_no_main_module(notebook):
    notebook("import worker_stages as ws\n" + build("ws.SlowIsAsync(sampled())"))


# --- programs without a guard


UNGUARDED = [
    build("Own(sampled())"),
    "for minibatch in dp.DataLoader(sampled(), 1): pass\n",
    "import logging\nlogging.getLogger(__name__)\n" + build("sampled()"),
    "try:\n    " + build("sampled()") + "finally: pass\n",
    "def main():\n    dp.DataLoader(sampled(), 1)\nmain()\n",
    build("sampled()") + "for minibatch in loader: pass\nif __name__ == '__main__':\n    pass\n",
]


@pytest.mark.parametrize("text", UNGUARDED, ids=["class", "loop", "name", "try", "function", "epoch"])
def test_a_program_without_a_guard_is_refused_when_the_loader_is_built(program, text, refuses):
    refuses(RuntimeError, program, textwrap.dedent(OWN) + text)


GUARDED = [
    "if __name__ == '__main__':\n    " + build("Own(sampled())"),
    "if __name__ == '__main__' and True:\n    " + build("sampled()"),
    "if True:\n    " + build("sampled()"),  # what a condition says cannot be told
    build("sampled()") + "if __name__ == '__main__':\n    pass\n",  # the epochs may begin below the guard
    "match __name__:\n    case '__main__':\n        " + build("sampled()"),
    "loader = __name__ == '__main__' and dp.DataLoader(sampled(), 1)\n",
    build("sampled()", worker_method="thread"),
    build("sampled()", multiprocessing_context="fork"),
]


@pytest.mark.parametrize("text", GUARDED, ids=range(len(GUARDED)))
def test_a_program_that_may_have_a_guard_is_let_pass(program, text):
    program(textwrap.dedent(OWN) + text)


def test_a_class_that_is_defined_below_the_guard_is_refused(program, refuses):
    text = "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(OWN), "    ")
    refuses(TypeError, program, text + "    " + build("Own(sampled())"))


@pytest.mark.parametrize(
    "above",
    [
        "class Own: pass",
        "from pipelines import as_it_is as Own",
        "from pipelines import *",
        "try:\n    import absent\nexcept ImportError:\n    pass",
        "if __name__ == '__mp_main__':\n    Own = int",
        "globals()['Own'] = 1",
    ],
)
def test_a_class_that_may_stand_elsewhere_too_is_let_pass(program, above):
    text = above + "\nif __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(OWN), "    ")
    program(text + "    " + build("Own(sampled())"))


def test_what_is_no_program_is_let_pass(monkeypatch, tmp_path):
    broken = tmp_path / "script.py"
    broken.write_bytes(b"\xff\x00 (")
    module = types.ModuleType("__main__")
    module.__file__ = str(broken)
    monkeypatch.setitem(sys.modules, "__main__", module)
    dp.DataLoader(sampled().transform(ws.as_it_is), 1)
    main_module.refuse_hidden("a stage", "Own")


# --- as the user sees it


@pytest.mark.full
@pytest.mark.parametrize("how", ranked(["file", "stdin"], 1))
def test_it_is_told_in_less_than_twenty_lines(tmp_path, how):
    text = f"import sys\nsys.path.insert(0, {SUPPORT!r})\nimport datapipes as dp\nfrom pipelines import sampled\n"
    text += textwrap.dedent(OWN) + "for minibatch in dp.DataLoader(Own(sampled()), 2): pass\n"
    if how == "file":
        (tmp_path / "script.py").write_text(text, encoding="utf-8")
    command = [sys.executable, *(["script.py"] if how == "file" else [])]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) < 20
    assert "worker_method='thread'" in ended.stderr
    assert ("there is no file" if how == "stdin" else "would run line") in ended.stderr


def test_what_a_notebook_shows_is_short(notebook):
    with pytest.raises(TypeError) as caught:
        notebook(OWN + textwrap.indent(build("Own(sampled())"), "    "))
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb.tb_next))
    assert len(shown.splitlines()) < 20


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_python_lists_the_frames_of_other_threads(monkeypatch, collects):
    """A tensor that a collection deletes lets the GIL go; in there the thread that takes it may wait for ever."""
    frames, seen = sys._current_frames, []

    def listed():
        seen.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", listed)
    monkeypatch.setattr(main_module, "_is_imported", lambda: False)
    (gc.enable if collects else gc.disable)()
    try:
        main_module.refuse_repetition(is_building=False)  # the main thread has its own frame
        with ThreadPoolExecutor(1) as thread:
            thread.submit(main_module.refuse_repetition, is_building=False).result()
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()
