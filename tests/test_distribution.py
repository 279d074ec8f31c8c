"""The distribution's name: it stands in one place, and no text that users see tells them to install another's package.

`datapipes` on the package index is somebody else's, and `gnn-datapipes` is not there yet: whoever may take that name, a
command that asks an index for either could install a stranger's code.
"""

import re
from pathlib import Path

import pytest

import datapipes
from datapipes.base.errors import DISTRIBUTION, pip_install

ROOT = Path(__file__).parents[1]
PACKAGE = Path(datapipes.__file__).parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SHOWN = ["*.md", "pyproject.toml", "setup.py", "Makefile", "requirements*.lock"]
FOLDERS = ["docs", "examples", "benchmarks", "tools", "csrc"]
TEXTS = {".md", ".py", ".pyi", ".sh", ".svg", ".h", ".cpp", ".ipynb", ".txt", ".toml"}

# Adjacent literals are one text, and so are the lines of a paragraph.
BETWEEN_LITERALS = re.compile(r"""["']\s*\n\s*[rf]?["']""")
COMMAND = re.compile(
    r"\b(?:(?:pip[\d.]*|pipx|uv pip|conda|mamba) (?:-\S+ )*(?:install|download|wheel)|(?:uv|poetry|pdm) add)"
    r"((?: [^\s`;|()]+)+)"
)
BY_NAME = re.compile(r"(?:(?:gnn[-_.])?datapipes|\{DISTRIBUTION\})(?:\[.*)?(?:[=<>~!]=?.*)?", re.IGNORECASE)
WRONG_ANYWHERE = re.compile(
    r"(?<![\w./-])datapipes(?:\[|==|>=|~=)"  # a requirement
    r"|\bpypi\.\w+/\S*datapipes\b"
    r"|\b(?:version|metadata|distribution|requires)\([\"']datapipes[\"']\)"
)


def wrong_names(text: str) -> list[str]:
    """Return the commands and requirements of a text that name a distribution for an index to find."""
    text = " ".join(BETWEEN_LITERALS.sub("", text).split())
    found = [match.group() for match in WRONG_ANYWHERE.finditer(text)]
    for command in COMMAND.finditer(text):
        words = [word.strip("'\".,:") for word in re.split("[.:,] ", command[1])[0].split()]
        if "--no-index" not in words and any(BY_NAME.fullmatch(word) for word in words):
            found.append(command.group())
    return found


def texts() -> dict[str, str]:
    paths = [path for pattern in SHOWN for path in ROOT.glob(pattern)]
    for folder in [*(ROOT / name for name in FOLDERS), PACKAGE]:
        paths += [path for path in folder.rglob("*") if path.suffix in TEXTS]
    return {str(path): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize(
    "text",
    [
        "pip install datapipes",
        "pip install -U datapipes",
        "`pip install 'datapipes[pyg]'`",
        "run pip install datapipes.",
        "pip install --quiet torch datapipes==0.1.0",
        "python -m pip --quiet install\n  datapipes",
        "uv pip install datapipes",
        "uv add datapipes",
        "pip install gnn-datapipes",
        "pip install 'gnn-datapipes[gpu]>=0.1'",
        "pip install gnn_datapipes",
        "the extra is datapipes[partition].",
        "dependencies: datapipes>=0.1",
        'raise ImportError("Install it: pip install "\n    "datapipes[gpu]. Or fetch before.")',
        """raise ImportError(f"{error}. Install it: pip install "\n    f"'datapipes[{extra}]'.")""",
        'f"pip install {DISTRIBUTION}"',
        'importlib.metadata.version("datapipes")',
        "https://pypi.org/project/datapipes/",
    ],
)
def test_a_wrong_name_is_found(text):
    assert wrong_names(f"Some text before it, {text} and after.") != []


@pytest.mark.parametrize(
    "text",
    [
        "pip install .",
        "`pip install '.[distributed]'` in a checkout of datapipes",
        "pip install dist/gnn_datapipes-0.1.0-cp311-cp311-linux_x86_64.whl",
        "pip install 'dist/gnn_datapipes-0.1.0.tar.gz[distributed]'",
        "pip install --no-index --find-links dist --no-deps gnn-datapipes",
        pip_install("triton", "gpu"),
        "`pip install .` installs it; the distribution is gnn-datapipes, the import datapipes.",
        "import datapipes as dp; datapipes partition IN OUT --parts 4; datapipes.DataLoader(pipe)",
        "`pip install .`, which installs datapipes",
        "`pip install pyarrow`. How to install datapipes: `gnn-datapipes[gpu]`",
        "https://example.org/datapipes/docs",
    ],
)
def test_what_works_is_not_taken_for_wrong(text):
    assert wrong_names(f"Some text before it, {text} and after.") == []


def test_no_text_that_users_see_names_a_strangers_package():
    found = {path: wrong for path, text in texts().items() if (wrong := wrong_names(text))}
    assert found == {}, "see docs/install.md for what works today"


def test_the_name_stands_once_in_pyproject_and_once_in_code():
    assert re.findall(r'^name = "(.+?)"', PROJECT, re.MULTILINE) == [DISTRIBUTION]
    code = {path: text.count(DISTRIBUTION) for path, text in texts().items() if path.endswith((".py", ".pyi"))}
    assert {Path(path).name: count for path, count in code.items() if count} == {"errors.py": 1}


def test_the_version_stands_in_the_package_and_in_the_citation():
    assert re.findall(r"^version\b.*", PROJECT, re.MULTILINE) == []
    assert re.search(r"^dynamic.version = \{ attr = \"datapipes.__version__\" \}", PROJECT, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)", citation, re.MULTILINE) == [datapipes.__version__]
    assert re.findall(r"^license: (.+)", citation, re.MULTILINE) == re.findall(r'^license = "(.+)"', PROJECT, re.M)


def packages_of_extras() -> dict[str, list[str]]:
    """The packages of each extra of pyproject.toml; Python 3.10 has no reader of TOML."""
    section = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = dict(re.findall(r"^(\w+) = \[(.*?)\]$", section, re.MULTILINE | re.DOTALL))
    return {name: re.findall(r'"(\w+)[>=]=', listed) for name, listed in extras.items()}


def test_every_remedy_names_a_package_that_its_extra_has():
    extras = packages_of_extras()
    calls = re.compile(r"""\b(?:pip_install|needed|not_installed)\(\s*"(\w+)[\w.]*",\s*"(\w+)\"""")
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    remedies = {*calls.findall(source)}
    assert {extra for _, extra in remedies} == {
        "cli",
        "distributed",
        "duckdb",
        "frame",
        "gpu",
        "ondisk",
        "partition",
        "pyg",
        "ray",
        "remote",
        "viz",
    }
    assert {(package, extra) for package, extra in remedies if package not in extras[extra]} == set()


def test_the_page_about_installing_has_every_extra():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    rows = {
        name: packages.split(", ") for name, packages in re.findall(r"^\| `\[(\w+)\]` \| (.*?) \|", page, re.MULTILINE)
    }
    assert {**rows, "dev": packages_of_extras()["dev"]} == packages_of_extras()


def test_the_first_screen_of_the_readme_says_where_it_runs():
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:25]
    assert "**Linux only, x86-64 and aarch64.**" in " ".join(first_screen)
    systems = re.findall(r'"Operating System :: (.*?)"', PROJECT)
    assert systems == ["POSIX :: Linux"]
    rows = re.findall(r"^\| ([\w-]+) \| ", (ROOT / "docs/install.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"system", "x86-64", "aarch64"} <= set(rows)
