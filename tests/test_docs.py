"""Every code block of README.md and docs/ runs as it is printed.

A page is one program: its Python blocks in order, in one file, run by a process of its own in a folder of its own. Text
becomes empty lines, so line 40 of the program is line 40 of the page. The program is a file because worker processes
import the main module. A text block is what the page prints, line for line. A page has no other kind of block: commands
stand inline or in tables. Files, modules and names of `dp` that a page names in backticks exist.
"""

import contextlib
import fnmatch
import importlib
import pkgutil
import random
import re
import runpy
import sys
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import check_site
import numpy as np
import pytest
import torch
import twin
import write_api
import write_tables
from amounts import ranked
from fake_device import fake_cuda
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pipelines import sampled
from scripts import run_program
from slow_hetero import hetero_graph

import datapipes as dp

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 300  # much more than any page takes, also on a busy machine
MARKDOWN = MarkdownIt("commonmark")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(text: str) -> list[Token]:
    """Fenced and indented blocks, those in lists and quotations too."""
    return [token for token in MARKDOWN.parse(text) if token.type in ("fence", "code_block")]


def program_of(text: str) -> str:
    """Return the Python blocks of a page, each line where it stands on the page."""
    lines = [""] * text.count("\n")
    for block in code_blocks(text):
        if block.info != "python":
            continue
        content = block.content.splitlines()
        first = block.map[0] + 1  # below the fence
        lines[first : first + len(content)] = content
    return "\n".join(lines) + "\n"


FIRST = ["README.md", "docs/your-own-stage.md"]  # the others run in `make test-all`
PROGRAMS = [page for page in PAGES if code_blocks(text_of(page))]


def run(program: Path, timeout_s: float) -> tuple[str, str]:
    """Return "" if the program ends well, else a report whose lines are those of the page; and what it printed."""
    warns = ["-W", "error", "-W", "ignore:`torch.jit.script` is deprecated:DeprecationWarning"]  # of torch_geometric
    code, output, errors = run_program(Path(program.name), folder=program.parent, timeout_s=timeout_s, options=warns)
    outcome = f"it took longer than {timeout_s} s" if code is None else f"it ended with exit status {code}"
    quiet = "Traceback" not in errors and "leaked" not in errors  # of another process
    return "" if code == 0 and quiet else f"{outcome}\n{errors}\nIt printed:\n{output}", output


def failing_block(text: str, report: str, name: str) -> str:
    """Return which block of the page the last traceback of a report points to."""
    lines = [int(line) for line in re.findall(rf'File "[^"]*{re.escape(name)}", line (\d+)', report)]
    for block in code_blocks(text):
        if lines and block.map[0] < lines[-1] <= block.map[1]:
            return f"in line {lines[-1]}, in the block that begins in line {block.map[0] + 1}"
    return "in no block that is known"


def fail_unless_it_runs(page: str, text: str, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
    program = folder / f"{Path(page).stem.replace('-', '_').lower()}_page.py"
    program.write_text(program_of(text), encoding="utf-8")
    report, output = run(program, timeout_s)
    if report:
        pytest.fail(f"{page} fails {failing_block(text, report, program.name)}: {report}", pytrace=False)
    for block in code_blocks(text):
        if block.info == "text" and block.content not in output:
            where = f"the text block that begins in line {block.map[0] + 1}"
            pytest.fail(f"{page} does not print {where}. It printed:\n{output}", pytrace=False)


@pytest.mark.parametrize("page", ranked(sorted(PROGRAMS, key=FIRST.__contains__, reverse=True), len(FIRST)))
def test_a_page_runs_as_it_is_printed(page, tmp_path):
    fail_unless_it_runs(page, text_of(page), tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_python_that_runs(page):
    for block in code_blocks(text_of(page)):
        where = f"{page}, line {block.map[0] + 1}"
        assert block.type == "fence", f"{where}: indented code does not run. Fence it as ```python."
        assert block.info in ("python", "text"), (
            f"{where}: a block must be ```python, got {block.info!r}. Write it inline."
        )
        assert block.level == 0, f"{where}: a block in a list or a quotation is indented. Move it out."
    infos = {block.info for block in code_blocks(text_of(page))}
    assert "text" not in infos or "python" in infos, f"{page}: no block prints what its text block shows"
    assert "<pre" not in text_of(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_files_and_headings(page):
    tokens = [child for token in MARKDOWN.parse(text_of(page)) for child in token.children or ()]
    links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
    links += [str(token.attrs["src"]) for token in tokens if token.type == "image"]
    for link in links:
        if not link.startswith(("https://", "http://")):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), f"{page} links to {link}, which is not there"
            assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{page} links to {link}"


def anchors(text: str) -> set[str]:
    """The names that hosts of Markdown give to headings."""
    tokens = MARKDOWN.parse(text)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- what a page names in backticks exists


FOLDERS = ("datapipes", "csrc", "tests", "docs", "benchmarks", "examples", "tools")
BEGINNINGS = ("", "datapipes/", "tests/")  # a path is from one of these, or from the page's folder
SOURCE = (".py", ".pyi", ".h", ".cpp", ".sh")
OF_OTHERS = {"launch.py"}  # DGL's
MADE = ("demo/", "dist/", "build/", ".venv-matrix/", "book/")  # by make, and by a partition
NAMES_OF_TODAY = [page for page in PAGES if not page.startswith("docs/decisions/")]  # a decision has those of its day
NAME_IN_FILE = re.compile(r"`([\w.]+)`\s+(?:in\s+|\()`([\w/]+\.(?:py|h|cpp))`")


@cache
def paths() -> frozenset[str]:
    """Every file and folder that a page may name, from the root of the checkout; folders end with "/"."""
    found = {path for path in ROOT.iterdir() if path.is_file()} | {ROOT / folder for folder in FOLDERS}
    for folder in FOLDERS:
        found.update(path for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts)
    return frozenset(f"{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in found)


@cache
def first_folders() -> frozenset[str]:
    return frozenset({*FOLDERS, *(path.name for path in (ROOT / "datapipes").iterdir() if path.is_dir())})


def missing_names(text: str, page: str = "README.md") -> list[str]:
    """Return the files, modules and public names in backticks, outside of blocks, that do not exist."""
    tokens = [child for token in MARKDOWN.parse(text) for child in token.children or ()]
    missing = []
    for span in (token.content for token in tokens if token.type == "code_inline"):
        missing += [f"dp.{name}" for name in re.findall(r"(?<![\w.])dp\.([A-Za-z_][\w.]*)", span) if not has(dp, name)]
        missing += [name for name in re.findall(r"(?<![\w.])datapipes(?:\.[A-Za-z_]\w*)+", span) if not imported(name)]
        for word in re.findall(r"[\w./*-]*[\w/*]", span):
            below = "/" in word and word.split("/")[0] in first_folders()
            alone = word == span and word.endswith((*SOURCE, "/")) and not word.startswith(MADE)
            if (below or alone) and word not in OF_OTHERS and not is_there(word, page):
                missing.append(word)
    for name, path in NAME_IN_FILE.findall(text):
        beside = [ROOT / each for each in paths() if f"/{each}".endswith(f"/{path}")]
        if not any(name.split(".")[-1] in each.read_text(encoding="utf-8") for each in beside):
            missing.append(f"{name} in {path}")
    return missing


def has(owner: object, name: str) -> bool:
    for part in filter(None, name.split(".")):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def imported(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            return has(importlib.import_module(".".join(parts[:count])), ".".join(parts[count:]))
    return False


def is_there(word: str, page: str) -> bool:
    if "/" not in word or word.endswith("/"):  # a file's name alone, or a folder in the folder that the text speaks of
        return any(f"/{path}".endswith(f"/{word}") for path in paths())
    beginnings = (*BEGINNINGS, f"{Path(page).parent.as_posix()}/")
    return any(fnmatch.filter(paths(), f"{begin}{word}{end}") for begin in beginnings for end in ("", "/", ".py"))


@pytest.mark.parametrize("page", NAMES_OF_TODAY)
def test_files_modules_and_names_in_backticks_exist(page):
    assert missing_names(text_of(page), page) == [], f"{page} names what is not there"


def test_the_generated_tables_are_current():
    for path, text in write_tables.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: run `make stubs`"


def test_the_reference_is_current():
    pytest.importorskip("torch_geometric", reason="the reference has the loaders of datapipes.pyg")
    for path, text in write_api.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: run `make stubs`"
    assert set(write_api.API.iterdir()) == set(write_api.pages())


def test_every_public_name_has_an_entry_in_the_reference():
    pytest.importorskip("torch_geometric", reason="the reference has the loaders of datapipes.pyg")
    entries = [value for names in write_api.entries().values() for value in names.values()]
    text = "".join(page.read_text(encoding="utf-8") for page in write_api.API.glob("*.rst"))
    listed = re.findall(r"^\.\. (?:auto(?:class|exception|function|module)|py:data):: (.+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    packages = ["datapipes", *(found.name for found in pkgutil.walk_packages(dp.__path__, "datapipes.") if found.ispkg)]
    for package in map(importlib.import_module, packages):
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if not write_api.is_ours(value) or value is dp.stages:
                continue  # handed on: PyG's names, and those that stand on the pages of their folders
            has_page = f"{package.__name__}.{name}" in listed or any(value is each for each in entries)
            assert has_page, f"{package.__name__}.{name} has no entry in docs/api: run `make stubs`"


def test_the_blocks_that_a_page_makes_for_dgl_have_the_edges_of_ours(monkeypatch):
    class Block:  # of dgl.create_block: in-edges of each type as CSC, in one dtype, and numbers by node type
        def __init__(self, edges, num_src, num_dst):
            self.edges = {of: SimpleNamespace(data={}) for of in edges}
            self.columns = {}
            for of, (form, (indptr, indices, ids)) in edges.items():
                assert (form, indptr.dtype, ids, len(indptr)) == ("csc", indices.dtype, [], num_dst[of[2]] + 1)
                assert indices.numel() == 0 or int(indices.max()) < num_src[of[0]]
                self.columns[of] = torch.stack(
                    (indices, torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff()))
                )

    page = program_of(text_of("docs/migrate/graphbolt.md"))
    names = {}
    exec(page[page.index("def dgl_blocks") : page.index("@dp.register_stage")].rpartition("import torch")[0], names)
    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(create_block=Block, EID="_ID"))
    plain = sampled().transform(lambda minibatch: minibatch)
    typed = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(3)}), 3).sample_neighbor(
        hetero_graph(), [2, 2], return_edge_ids=True
    )
    for minibatch in (next(iter(plain)), next(iter(typed))):
        for made, block in zip(names["dgl_blocks"](minibatch), minibatch.blocks, strict=True):
            for of, ours in (block if isinstance(block, dict) else {("_N", "_E", "_N"): block}).items():
                assert torch.equal(made.columns[of], ours.edge_index.long())
                assert torch.equal(made.edges[of].data["_ID"], ours.edge_ids)


def test_every_page_is_in_a_list_of_contents():
    pages = {page for kind in ("md", "rst") for page in (ROOT / "docs").rglob(f"*.{kind}")}
    listed = {ROOT / "docs/index.md"}
    for index in (ROOT / "docs").rglob("index.md"):
        links = re.findall(r"^(?:\* |## )\[.+?\]\((.+?)\)", index.read_text(encoding="utf-8"), re.MULTILINE)
        listed |= {index.parent / link for link in links}
    assert pages - listed == set(), "list them in docs/index.md"


def semantics_page(folder: Path) -> dict:
    program = folder / "semantics_page.py"
    program.write_text(program_of(text_of("docs/semantics.md")), encoding="utf-8")
    return runpy.run_path(str(program))


def test_the_code_of_the_semantics_page_equals_the_twin(tmp_path):
    page = semantics_page(tmp_path)
    numbers = random.Random(0)
    for _ in range(200):
        key, node, stream = numbers.getrandbits(64), numbers.getrandbits(64), numbers.getrandbits(32)
        parts = [numbers.getrandbits(bits) for bits in twin.HOP_KEY_BITS.values()]
        assert page["hop_key"](*parts) == twin.hop_key(*parts)
        expected = twin.Stream(key, node, stream)
        assert list(islice(page["words"](key, node, stream), 9)) == [expected.word() for _ in range(9)]
        n = numbers.randrange(1, 2 ** numbers.randrange(1, 63))
        expected = twin.Stream(key, node, stream)
        assert page["bounded"](page["words"](key, node, stream), n) == expected.bounded(n)
        n, fanout, replace = numbers.randrange(20), numbers.randrange(-1, 22), numbers.random() < 0.5
        expected = twin.choose(n, fanout, replace, twin.Stream(key, node))
        assert page["picks"](n, fanout, replace, page["words"](key, node)) == expected
    for n in (1, 2, 100, 2**16, 2**16 + 1, 10**6):
        assert page["perm"](n, key, n // 3) == twin.permutation_at(n, key, n // 3)
    message = {"b.x": torch.arange(6).reshape(2, 3), "a": torch.tensor(True), "é": torch.zeros(0, 2)}
    assert page["digest"](message) == twin.digest({name: np.asarray(part) for name, part in message.items()})


@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("replace", [False, True])
def test_the_hops_of_the_semantics_page_equal_the_twins(tmp_path, frontier, replace):
    numbers = random.Random(1)
    edges = torch.tensor([[numbers.randrange(30) for _ in range(150)] for _ in range(2)])
    graph = dp.CSCGraph.from_edge_index(edges, num_nodes=30)
    seeds = [numbers.randrange(30) for _ in range(8)]
    sample = semantics_page(tmp_path)["sample"]
    nodes, compacted, hops = sample(graph, seeds, [2, -1, 3], frontier, replace, seed=5, epoch=6, batch=7, stage=1)
    expected = twin.sample_neighbors(
        graph.indptr.tolist(),
        graph.indices.tolist(),
        None,
        seeds,
        fanouts=[3, -1, 2],
        keys=[twin.hop_key(5, 6, 7, 1, hop, 0) for hop in range(3)],
        replace=replace,
        frontier=frontier,
    )
    assert (nodes, compacted) == (expected.nodes, expected.compacted_seeds)
    assert hops == [(hop.indptr, hop.indices, hop.num_src) for hop in expected.hops]


@pytest.mark.parametrize("frontier", ["all", "new"])
def test_the_typed_hops_of_the_semantics_page_equal_the_twins(tmp_path, frontier):
    numbers = random.Random(2)
    edge_types = [("b", "r", "a"), ("a", "r", "a"), ("a", "q", "a"), ("a", "r", "b"), ("c", "r", "a")]
    num_nodes, relations = {"a": 20, "b": 9, "c": 0}, {}
    for src, rel, dst in edge_types:
        degrees = [numbers.randrange(6) if num_nodes[src] else 0 for _ in range(num_nodes[dst])]
        columns = [[numbers.randrange(num_nodes[src]) for _ in range(degree)] for degree in degrees]
        indptr = [sum(map(len, columns[:v])) for v in range(len(columns) + 1)]
        relations[src, rel, dst] = (indptr, [u for column in columns for u in column], None)
    tensors = {of: tuple(map(torch.tensor, arrays[:2])) for of, arrays in relations.items()}
    tensors = {of: (indptr, indices.long()) for of, (indptr, indices) in tensors.items()}
    graph = dp.HeteroCSCGraph(tensors, num_nodes=num_nodes)
    seeds = {of: [numbers.randrange(num_nodes[of]) for _ in range(5)] for of in ("b", "a")}
    fanouts = [{of: numbers.randrange(-1, 4) for of in edge_types} for _ in range(3)]
    sample = semantics_page(tmp_path)["sample_types"]
    nodes, hops = sample(graph, seeds, fanouts, frontier, seed=5, epoch=6, batch=7, stage=1)
    expected = twin.sample_typed_neighbors(
        sorted(num_nodes),
        relations,
        seeds,
        fanouts=fanouts[::-1],
        key_of=lambda hop, ordinal: twin.hop_key(5, 6, 7, 1, hop, ordinal),
        replace=False,
        frontier=frontier,
    )
    assert nodes == expected.nodes
    assert hops == [{of: (b.indptr, b.indices, b.num_src) for of, b in hop.items()} for hop in expected.hops]


def test_the_plans_of_the_gpu_page_are_what_explain_prints():
    page = " ".join(text_of("docs/gpu.md").split())
    shown = re.findall(r"`((?:thread 2|copy_to: C|fetch_feature: F|decode: |wait_for_gpu: )[^`]*)`", page)
    assert len(shown) == 6
    printed = ""
    with fake_cuda():
        for pinned in (True, False):
            feature = dp.TensorFeature(torch.ones(40, 3), stored_as=None if pinned else "int8")
            store = dp.FeatureStore({("node", None, "feat"): feature.pin_memory_() if pinned else feature})
            with dp.DataLoader(sampled().fetch_feature(store, ["feat"]).copy_to("cuda")) as loader:
                printed += loader.explain() + "\n"
            del feature, store, loader
    lines = {line.strip() for line in printed.splitlines()}
    assert {line for line in shown if line not in lines} == set()


# --- the checks of pages and of the site find what is wrong


SITE = """<h1 id="here">A page</h1><a href="#here"></a><a href="b%20c.html"></a><a href="https://example.org/"></a>
<img src="data:image/png;base64,AA=="><style>a {{ color: red }}</style>{}"""


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ("", []),
        ('<a href="none.html"></a>', ["none.html leads to no file"]),
        ('<a href="#none"></a>', ["#none leads to no anchor"]),
        ('<a href="b%20c.html#there"></a><a href="b%20c.html#none"></a>', ["b%20c.html#none leads to no anchor"]),
        ('<img src="none.png">', ["none.png leads to no file"]),
        ('<script src="https://example.org/a.js"></script>', ["fetches https://example.org/a.js"]),
        ('<link rel="stylesheet" href="//example.org/a.css">', ["fetches //example.org/a.css"]),
        ("<style>@import 'https://example.org/b.css';</style>", ["fetches https://example.org/b.css"]),
        ('<p style="background: url(//example.org/c.png)">', ["fetches //example.org/c.png"]),
    ],
)
def test_dead_links_and_what_is_fetched_from_elsewhere_are_found(html, said, tmp_path):
    (tmp_path / "a.html").write_text(SITE.format(html), encoding="utf-8")
    (tmp_path / "b c.html").write_text('<p id="there">', encoding="utf-8")
    assert check_site.faults(tmp_path) == [f"a.html: {each}" for each in said]
    (tmp_path / "a.css").write_text("@font-face { src: url('https://example.org/f.woff') }", encoding="utf-8")
    assert check_site.faults(tmp_path)[len(said) :] == ["a.css: fetches https://example.org/f.woff"]


PAGE = """A page.

```python
x = 1
```

Text.

```python
{}
```
"""


def test_blocks_share_a_namespace_and_keep_their_lines(tmp_path):
    fail_unless_it_runs(
        "page.md", PAGE.format("import sys\nassert x == 1 and sys._getframe().f_lineno == 11"), tmp_path
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("y = x\nassert y == 2", "page.md fails in line 11, in the block that begins in line 9: .*AssertionError"),
        ("import warnings\nwarnings.warn('old')", "line 11, .*UserWarning: old"),
        ("while x:\n    x += 1", "line 1[01], .*it took longer than"),
    ],
)
def test_a_page_that_fails_names_its_line(tmp_path, code, said):
    with pytest.raises(pytest.fail.Exception, match=f"(?s){said}"):
        fail_unless_it_runs("page.md", PAGE.format(code), tmp_path, 1.5 if "while" in code else TIMEOUT_S)


def test_a_text_block_is_what_the_page_prints(tmp_path):
    page = PAGE.format("print(1)\nprint('two')") + "\n```text\n{}\n```\n"
    fail_unless_it_runs("page.md", page.format("1\ntwo"), tmp_path)
    with pytest.raises(pytest.fail.Exception, match="does not print the text block that begins in line 14"):
        fail_unless_it_runs("page.md", page.format("1\nthree"), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "chain/in_fligth.py",
        "loader/workers/nobody.py",
        "benchmarks/nothing.py",
        "csrc/nothing/",
        "nobody_has_this.py",
        "datapipes.partition.nothing",
        "datapipes.nothing.report",
        "dp.distributed.Nothing",
        "python benchmarks/nothing.py --graph DIR",
        "chains/run.py",
        "tests/nobody_*.py",
        "wires/",
        "Nobody` in `chain/run.py",
    ],
)
def test_a_name_that_does_not_exist_is_found(name):
    there = "`chain/run.py`, `run.py`, `dp.Stage.sources`, `datapipes.chain.run`, `python tools/matrix.py`, `csrc/shm/`"
    assert missing_names(there) == []
    assert len(missing_names(f"{there} and `{name}`")) == 1


@pytest.mark.parametrize("text", ["```\nx\n```\n", "```sh\nls\n```\n", "    x = 1\n", "- ~~~\n  x\n  ~~~\n"])
def test_every_kind_of_block_is_found(text):
    assert len(code_blocks(text)) == 1
