"""Change one place of the code at a time, and say which changes no test notices.

Run: nice -n 19 python tools/mutate.py [--seed 0] [--mutations 100] [--paths csrc/shm datapipes/base/codec.py] [--list]
A mutation changes a comparison or condition, a bound or a returned value, or takes a lock away, in the modules behind
the promises (TESTS). Their tests then run until the first that fails. Where all pass, the mutation has survived: it
changes no behaviour, or a test is missing. The last lines name the survivors; the exit status is 1 if there are any.

It works in a copy of the checkout and takes hours, so it is run by hand. The same seed and code give the same
mutations. One with which a test says nothing for --limit seconds counts as noticed, one that does not compile as none.
Texts of errors and logs, assertions, and times (floats) are left alone.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

# What runs for each file or folder, in this order: suites of csrc/tests, then tests of Python, the fastest first.
_SHM, _CHAIN, _WORKERS = "tests/channel/test_shm", "tests/chain/test", "tests/loader/workers/test"
_SERVER = "tests/distributed/server/test"
TESTS = {
    "csrc/shm": f"test_shm {_SHM}_channel.py {_SHM}_channel_messages.py {_SHM}_garbage.py {_SHM}_channel_faults.py",
    "csrc/cache": "test_cache tests/features/test_cached_feature.py tests/distributed/test_dist_feature_store.py",
    "csrc/digest": "test_digest tests/base/test_array_digest.py tests/partition/native/test_piece_hash.py",
    "csrc/graph/rows_digest": "test_digest tests/graph/test_rows_digest.py",
    "datapipes/chain/deaths.py": f"{_CHAIN}_dispatcher.py {_CHAIN}_dispatcher_model.py {_WORKERS}_workers.py "
    f"{_WORKERS}_async_workers.py",
    "datapipes/chain/dispatcher.py": f"{_CHAIN}_dispatcher.py {_CHAIN}_dispatcher_model.py {_WORKERS}_workers.py "
    f"{_WORKERS}_async_workers.py",
    "datapipes/chain/pool.py": f"{_CHAIN}_dispatcher.py {_CHAIN}_loop_pool.py {_CHAIN}_dispatcher_model.py",
    "datapipes/chain/loop_pool.py": f"{_CHAIN}_loop_pool.py {_WORKERS}_making.py {_CHAIN}_asynchronous.py "
    f"{_CHAIN}_in_flight.py {_WORKERS}_async_workers.py",
    "datapipes/distributed/server_pool.py": "tests/distributed/test_server_pool.py "
    "tests/distributed/test_remote_receiving_channel.py tests/distributed/test_remote_source.py",
    "datapipes/loader/workers/making.py": f"{_WORKERS}_making.py {_WORKERS}_async_workers.py {_WORKERS}_workers.py",
    "datapipes/loader/workers": f"{_WORKERS}_making.py {_WORKERS}_board.py {_WORKERS}_outcomes.py "
    f"{_WORKERS}_typed_workers.py {_WORKERS}_async_workers.py {_WORKERS}_workers.py "
    f"{_WORKERS}_clones.py {_WORKERS}_worker_faults.py",
    "datapipes/base/codec.py": f"tests/minibatch tests/distributed/wire {_WORKERS}_outcomes.py",
    "datapipes/minibatch/message.py": f"tests/minibatch tests/distributed/wire {_WORKERS}_outcomes.py",
    "datapipes/minibatch/minibatch.py": "tests/minibatch tests/test_golden.py",
    "datapipes/base/array_digest.py": "tests/base/test_array_digest.py tests/chain/test_changed_data.py "
    "tests/partition/native/test_piece_hash.py tests/graph/test_storage.py tests/features/test_cached_feature.py",
    "datapipes/graph/choice.py": "tests/graph tests/sampling",
    "datapipes/graph/arrays.py": "tests/graph",
    "datapipes/distributed/client/retry.py": "tests/distributed/client",
    "datapipes/features/cached_feature.py": "tests/features/test_cached_feature.py tests/features/test_update.py",
    "datapipes/distributed/hot_rows.py": "tests/distributed/test_dist_feature_store.py",
    "datapipes/distributed/server/admission.py": f"{_SERVER}_admission.py {_SERVER}_server_connections.py "
    f"{_SERVER}_partition_server.py {_SERVER}_producers.py",
}
SUFFIXES = (".py", ".cpp", ".h")
LEFT_OUT = shutil.ignore_patterns(".git", "build", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "demo", "dist")
MAKEFILE = """
kernels := $(filter-out csrc/bindings/% csrc/tests/%,$(wildcard csrc/*/*.cpp))
object = $(patsubst %.cpp,build/%.o,$(1))
tests := $(call object,$(kernels) $(wildcard csrc/tests/*.cpp))
core := $(call object,$(kernels) csrc/bindings/module.cpp csrc/bindings/shm.cpp)
flags := -std=c++20 -O1 -g0 -w -fPIC -ffp-contract=off -fvisibility=hidden -DDATAPIPES_SHM_STEPS -Icsrc $(INCLUDES)
both: build/tests $(CORE)
build/tests: $(tests)
	$(CXX) -pthread $^ -o $@
$(CORE): $(core)
	$(CXX) -pthread -shared $^ -o $@
build/%.o: %.cpp
	mkdir -p $(@D)
	$(CXX) $(flags) -MMD -c $< -o $@
-include $(tests:.o=.d) $(core:.o=.d)
"""
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
         "in": "not in", "not in": "in", "&&": "||", "||": "&&", "min": "max", "max": "min",
         "false": "true", "true": "false"}  # fmt: skip

Change = tuple[int, int, str, str]  # begin, end, what takes the place of these bytes, kind


class Mutation(NamedTuple):
    """A change of the bytes [begin, end) of a file."""

    path: str
    begin: int
    end: int
    after: str
    kind: str

    def applied(self, text: bytes) -> bytes:
        """Return the changed text of the file."""
        return text[: self.begin] + self.after.encode() + text[self.end :]

    def shown(self, text: bytes) -> str:
        """Return the place, and its lines before and after."""
        first, last = text.rfind(b"\n", 0, self.begin) + 1, text.find(b"\n", self.end)
        lines = text[first:last], self.applied(text[:last])[first:]
        before, after = (" ".join(each.decode().split()) for each in lines)
        number = text.count(b"\n", 0, self.begin) + 1
        return f"{self.path}:{number}: {self.kind}\n    before: {before}\n    after:  {after}"


# --- the mutations of a file ------------------------------------------------------------------------------------------


def mutations_of(path: str, text: bytes) -> list[Mutation]:
    """Return all mutations of a file, in the order of their places."""
    changes = python_changes(text) if path.endswith(".py") else cpp_changes(text)
    return sorted(Mutation(path, *change) for change in changes)


def python_changes(text: bytes) -> Iterator[Change]:
    """Yield the changes of a module of Python; its layout stays."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def source(node: ast.expr) -> str:
        return text[slice(*span(node))].decode()

    def walk(node: ast.AST, returns_bool: bool = False) -> Iterator[Change]:
        match node:
            case ast.JoinedStr() | ast.Raise() | ast.Assert():
                return
            case ast.Call(func=ast.Attribute(value=ast.Name("logger"))):
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                returns_bool = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
            case ast.Compare():
                for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                    gap = text[span(left)[1] : span(right)[0]].decode()
                    if operator := re.search(r"[<>=!]+|\b(is not|not in|is|in)\b", gap):
                        begin = span(left)[1] + operator.start()
                        yield begin, begin + len(operator[0]), SWAPS[operator[0]], "comparison"
            case ast.BoolOp():
                for operand in node.values:
                    yield *span(operand), str(isinstance(node.op, ast.And)), "condition"
            case ast.UnaryOp(op=ast.Not()):
                yield *span(node), f"bool({source(node.operand)})", "condition"
            case ast.If() | ast.IfExp():
                yield *span(node.test), "False", "condition"
            case ast.Constant() if type(node.value) is int:
                yield *span(node), str(node.value + 1), "bound"
            case ast.Call(func=ast.Name("min" | "max") as function):
                yield *span(function), SWAPS[function.id], "bound"
            case ast.Return(value=ast.expr() as value) if source(value) != "None":
                yield *span(value), f"not ({source(value)})" if returns_bool else "None", "return"
            case ast.withitem(context_expr=ast.Attribute() | ast.Name() as lock):  # a lock is no call
                yield *span(lock), '__import__("contextlib").nullcontext()', "lock"
        for name, children in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in children if isinstance(children, list) else [children]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, returns_bool)

    return walk(ast.parse(text))


CPP_CHANGES = {  # by kind; clang-format sees to the blanks, so that brackets of templates are no comparisons
    "comparison": rb"(?<= )([<>]=?|[=!]=|&&|\|\|)(?=\s)",
    "bound": rb"(?<=[-+<>=,] )\d+(?=[;,) ])|(?<=std::)(min|max)(?=[(<])",
    "return": rb"(?<=\breturn )(true|false)(?=;)",
    "lock": rb"(const )?(Guard|std::(lock_guard|unique_lock|scoped_lock)) \w+\(.*\);",
}


def cpp_changes(text: bytes) -> Iterator[Change]:
    """Yield the changes of a file of C++."""
    left_alone = rb'//.*|"(\\.|[^"\\\n])*"|\'(\\.|[^\'\\\n])+\'|^ *#.*'
    for pattern in (left_alone, rb"\b(static_assert|throw)\b[^;]*;"):  # they become blanks, so that all places stay
        text = re.sub(pattern, lambda found: b" " * len(found[0]), text, flags=re.MULTILINE)
    for kind, pattern in CPP_CHANGES.items():
        for found in re.finditer(pattern, text):
            before = found[0].decode()
            yield *found.span(), str(int(before) + 1) if before.isdigit() else SWAPS.get(before, ""), kind
    for found in re.finditer(rb"\bif \(", text):
        end, depth = found.end(), 1
        while depth:
            depth += {b"(": 1, b")": -1}.get(text[end : end + 1], 0)
            end += 1
        if not re.search(rb";|[^=!<>]=[^=]", text[found.end() : end]):  # it declares nothing
            yield found.end(), end - 1, "false", "condition"


# --- builds and tests -------------------------------------------------------------------------------------------------


def build(copy: Path, limit: float) -> str:
    """Compile the core and its tests; return "", or how that ended."""
    (copy / "build").mkdir(exist_ok=True)
    (copy / "build/Makefile").write_text(MAKEFILE)
    includes = subprocess.check_output([sys.executable, "-m", "pybind11", "--includes"], text=True).strip()
    core = f"CORE=datapipes/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    return run(["make", "-f", "build/Makefile", core, f"INCLUDES={includes}"], copy, 10 * limit)


def test(copy: Path, tests: str, limit: float) -> str:
    """Run suites and tests until the first fails; return its name, or ""."""
    suites, paths = ([word for word in tests.split() if ("/" in word) is is_path] for is_path in (False, True))
    pytest = [sys.executable, "-m", "pytest", "-xv", "-p", "no:cacheprovider", *paths]
    return (run(["build/tests", *suites], copy, limit) if suites else "") or run(pytest, copy, limit)


def run(command: list[str], copy: Path, limit: float) -> str:
    """Run a command until it ends or says nothing for `limit` seconds; return "" if it succeeds, else how it ended."""
    surroundings = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=copy, env=surroundings, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        size, since = 0, time.monotonic()
        while (status := process.poll()) is None and time.monotonic() - since < limit:
            time.sleep(0.1)
            if os.fstat(output.fileno()).st_size != size:
                size, since = os.fstat(output.fileno()).st_size, time.monotonic()
        end_children()
        output.seek(0)
        lines = output.read().strip().splitlines() or [""]
    if status == 0:
        return ""
    failed = [line.strip() for line in lines if re.match(r" *(FAILED|ERROR) ", line)]
    return f"hangs: {lines[-1]}" if status is None else (failed or [f"exit status {status}: {lines[-1]}"])[0]


def end_children() -> None:
    """Kill all descendants of this process. A child of one that is killed becomes its own (see main)."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def write(path: Path, text: bytes) -> None:
    """Write a module, and drop what Python has cached of it, since Python would compare only seconds and sizes."""
    path.write_bytes(text)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()


def try_all(mutations: list[Mutation], tests_of: dict[str, str], copy: Path, limit: float) -> list[str]:
    """Try each mutation and print what noticed it; return those that survived."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what tests leave behind becomes a child of this process
    survivors, passed = [], set()
    for number, mutation in enumerate(mutations, 1):
        path, is_compiled = copy / mutation.path, not mutation.path.endswith(".py")
        tests = next(tests for name, tests in tests_of.items() if mutation.path.startswith(name))
        if tests not in passed and (noticed := (is_compiled and build(copy, limit)) or test(copy, tests, limit)):
            raise SystemExit(f"mutate: {tests} must pass before anything is changed, and does not: {noticed}")
        passed.add(tests)
        text, began = path.read_bytes(), time.monotonic()
        try:
            write(path, mutation.applied(text))
            noticed = "does not compile" if is_compiled and build(copy, limit) else test(copy, tests, limit)
        finally:
            write(path, text)
        shown, seconds = mutation.shown(text), f"({time.monotonic() - began:.0f} s)"
        print(f"{number}/{len(mutations)} {shown.splitlines()[0]}: {noticed or 'SURVIVED'} {seconds}", flush=True)
        survivors += [] if noticed else [shown]
    return survivors


def main(arguments: list[str] | None = None, root: Path = ROOT, tests_of: dict[str, str] = TESTS) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Change one place at a time, and say which changes no test notices.")
    parser.add_argument("--seed", type=int, default=0, help="chooses the mutations (default: %(default)s)")
    parser.add_argument("--mutations", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--paths", nargs="+", default=[*tests_of], help="files and folders (default: all of TESTS)")
    parser.add_argument("--list", action="store_true", help="only print the mutations")
    parser.add_argument("--limit", type=float, default=120, help="seconds without a word (default: %(default)s)")
    options = parser.parse_args(arguments)
    places = [place for path in options.paths for place in root.glob(f"{path}*")]
    files = sorted({file for place in places for file in [place, *place.rglob("*")] if file.suffix in SUFFIXES})
    names = [name for name in (str(file.relative_to(root)) for file in files) if name.startswith(tuple(tests_of))]
    if not names:
        parser.error(f"no file of {' '.join(options.paths)} has tests in TESTS. Add a line there, or name other paths.")
    texts = {name: (root / name).read_bytes() for name in names}
    every = [mutation for name, text in texts.items() for mutation in mutations_of(name, text)]
    chosen = sorted(random.Random(options.seed).sample(every, min(options.mutations, len(every))))
    print(f"{len(chosen)} of {len(every)} mutations, seed {options.seed}", flush=True)
    if options.list:
        print(*(mutation.shown(texts[mutation.path]) for mutation in chosen), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary).resolve() / "copy"
        shutil.copytree(root, copy, ignore=LEFT_OUT)
        survivors = try_all(chosen, tests_of, copy, options.limit)
    print(f"{len(survivors)} survived", *survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
