"""Look for dead links in a built site, and for what its pages fetch from elsewhere.

Every link and every source inside the site must lead to a file, and to an anchor that the file has. A page may link to
another site, but fetches nothing from one: no script, style sheet, font or picture. The search index is not looked at.

Run: python tools/check_site.py build/docs
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")  # by a style sheet


class Page(HTMLParser):
    """The links of a page, what it fetches, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        to = self.links if tag == "a" else self.sources
        to += [given[name] for name in ("href", "src", "data", "poster") if name in given]
        self.sources += FETCHED.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.sources += FETCHED.findall(data)


def faults(site: Path) -> list[str]:
    """Return a line for each dead link, and for each thing that is fetched from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for url in page.links + page.sources:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.sources and parts.scheme != "data":
                    found.append(f"{where}: fetches {url}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{where}: {url} leads to no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: {url} leads to no anchor")
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.relative_to(site)}: fetches {url}" for url in FETCHED.findall(path.read_text("utf-8"))]
    return found


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found = faults(site)
    print("\n".join(found), file=sys.stderr, end="\n" * bool(found))
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
