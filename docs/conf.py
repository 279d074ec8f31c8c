"""The site that `make docs` builds of these pages. The pages stay right where Markdown is shown without Sphinx.

So no page has a directive. The table of contents is the lists of links of each index.md, and a public name in backticks
becomes a link to its entry in the reference. Files that are no pages are downloads.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import inspect
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import write_api  # noqa: E402

import datapipes as dp  # noqa: E402

DOCS = ROOT / "docs"
ENTRY = re.compile(r"^(?:\* |## )\[(.+?)\]\((.+?)\.(?:md|rst)\)", re.MULTILINE)  # of a list of contents
CONTENTS = {
    DOCS / f"{page}.md": title for title, page in ENTRY.findall((DOCS / "index.md").read_text(encoding="utf-8"))
}
PUBLIC = [value for names in write_api.entries().values() for value in names.values()]

project = "datapipes"
version = release = dp.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
nitpicky = True
nitpick_ignore_regex = [  # types in signatures: of other libraries, and of ours those that are not public
    (r"py:(class|obj)", r"(abc|collections|concurrent|enum|os|pathlib|types|typing)\..+"),
    (r"py:(class|obj)", r"(networkx|numpy|scipy|torch|torch_geometric|torchdata)\..+"),
    (r"py:(class|obj)", r"datapipes(\.\w+)+\.\w+"),
    (r"py:class", r"_?By\w+|Tensor"),  # aliases in dataclasses
]
default_role = "code"  # docstrings are Markdown in this: `name`

myst_heading_anchors = 6

autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"datapipes {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

NAPOLEON = Config(
    napoleon_use_param=False,  # one entry may describe several arguments
    napoleon_use_rtype=False,  # what stands before a colon need not be a type
    napoleon_custom_sections=[("Attributes", "params_style"), ("Raises", "params_style")],
)
ALIAS = re.compile(r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[([~\w.]+)\]\]")
MARKUP = re.compile(r"(`[^`]*`)|([*](?=\S)|(?<=\w)_(?!\w))")  # of reStructuredText, outside of what is in backticks
NAMES = re.compile(r"\*\*([A-Z]\w*(?:, [A-Z]\w*)*)\*\*")  # of errors: an entry of "Raises"
SENTENCE = re.compile(r"\*\*([A-Z][^*]* [^*]*)\*\*(?: --)?")  # an entry of "Raises" that names none


def without_tables(lines: list[str]) -> list[str]:
    """Return a docstring with each Markdown table as a list-table."""
    found: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not (found and found[-1].startswith("  ")):
            found += [".. list-table::", "   :header-rows: 1", ""]
        if not line.startswith("|--"):
            found += [f"   {' ' if n else '*'} - {cell}" for n, cell in enumerate(cells)] or [line]
    return found


def read_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Turn a docstring of Google's form into reStructuredText.

    That of a property is prose: napoleon would take what stands before its first colon for a type. Names of errors are
    code, so that public ones become links.
    """
    what = "method" if what in ("attribute", "property") else what
    plain = MARKUP.sub(lambda found: found[1] or "\\" + found[2], "\n".join(lines)).split("\n")
    found = GoogleDocstring(without_tables(plain), NAPOLEON, app, what, name, obj, options).lines()
    found = [NAMES.sub(lambda names: re.sub(r"(\w+)", r"`\1`", names[1]), line) for line in found]
    lines[:] = [SENTENCE.sub(r"\1", line) for line in found]


def show_signature(
    app: Sphinx, what: str, name: str, obj: type, options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Show the arguments of a class's own constructor, and NDArray for what that alias stands for."""
    if signature == "(*args: ~typing.Any, **kwargs: ~typing.Any)" and what == "class":
        own = inspect.signature(obj.__init__, bound_method=True, type_aliases={})
        signature = inspect.stringify_signature(own, show_return_annotation=False, unqualified_typehints=True)
    signature, result = (text and ALIAS.sub(r"~numpy.typing.NDArray[\1]", text) for text in (signature, result))
    return signature and signature.replace("<factory>", "..."), result  # of a dataclass


def show_public_bases(app: Sphinx, name: str, obj: object, options: object, bases: list[type]) -> None:
    """Leave out the bases that have no entry, but for those of Python and of other libraries."""
    bases[:] = [base for base in bases if base in PUBLIC or not base.__module__.startswith("datapipes.")]


def to_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to Markdown outside of docs/ be downloads, as those to other files are; a folder is named only.

    Where the text of a link is the name of a page's file, the page's entry in the table of contents stands for it.
    """
    folder = Path(app.env.doc2path(docname)).parent

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_dir():
            return f"{found[1]} (`{target.relative_to(ROOT)}/` of the sources)"
        outside = target.suffix == ".md" and not target.is_relative_to(app.srcdir)
        return f"[{found[1]}](path:{found[2]})" if outside else found[0]

    text = re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)", link, source[0])
    source[0] = re.sub(r"\[[\w/.-]+\.md\]\(([^)#]+)", lambda found: named(found, folder), text)


def named(link: re.Match[str], folder: Path) -> str:
    """Return the beginning of a link to a page, with the page's title as its text."""
    title = CONTENTS.get((folder / link[1]).resolve())
    return f"[{title}]({link[1]}" if title else link[0]


def list_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give an index.md the table of contents that its sections list: each link to a page that begins a line."""
    if docname.rpartition("/")[2] != "index":
        return
    for section in re.split(r"^(?=## )", source[0], flags=re.MULTILINE):
        title = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", section.partition("\n")[0].lstrip("# "))
        if links := ENTRY.findall(section):
            pages = "".join(f"{text} <{page}>\n" for text, page in links)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}```\n"


class LinkPublicNames(SphinxPostTransform):
    """Turn `dp.NAME` and `NAME`, alone in backticks, into links to the entry of a public name.

    On a page about another library `NAME` may be that library's, so only `dp.NAME` is a link there.
    """

    default_priority = 400

    def run(self, **options: object) -> None:
        objects = self.env.domains.python_domain.objects
        here = self.env.docname
        for literal in list(self.document.findall(nodes.literal)):
            name = re.sub(r"^(dp|datapipes)\.", "", literal.astext())
            entry = objects.get(f"datapipes.{name}")
            may_be_theirs = here.startswith("migrate/") and name == literal.astext()
            if entry is None or may_be_theirs or isinstance(literal.parent, nodes.reference):
                continue
            text = literal.deepcopy()
            literal.replace_self(make_refnode(self.app.builder, here, entry.docname, entry.node_id, text, name))


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", show_signature)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("source-read", to_files)
    app.connect("source-read", list_pages)
    app.add_post_transform(LinkPublicNames)
