"""Take pictures of HTML pages in Chromium: narrow and wide, light and dark.

Writes OUT/NAME-WIDTH-SCHEME.png, where NAME is the page's path below the folder that all pages share, WIDTH is 390 or
1440 pixels and SCHEME is light or dark. A picture has the whole page, up to 3,000 pixels of its height. A page that is
wider than its window is named, and the exit status is then 1: wide tables and code must scroll inside themselves.

Chromium (Debian: `chromium`) is spoken to over a pair of pipes, by its DevTools protocol: the command line can choose
neither a window narrower than 500 pixels nor the color scheme.

Run: python tools/screenshots.py OUT PAGE.html...
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = (390, 1440)
SCHEMES = ("light", "dark")
MOST_HEIGHT = 3000
QUIET = [  # nothing is asked of the network
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
SIZE = "[innerWidth, document.documentElement.scrollWidth, document.documentElement.scrollHeight]"


class Browser:
    """A Chromium that answers one command at a time; messages end with a zero byte, in by its fd 3, out by its fd 4."""

    def __init__(self, profile: str) -> None:
        to_read, write = os.pipe()
        read, to_write = os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "-", "chromium", *QUIET]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.commands, self.answers = os.fdopen(write, "wb", buffering=0), os.fdopen(read, "rb")
        self.numbers = itertools.count(1)
        self.page: dict[str, str] = {}  # "sessionId", once there is a page
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.page = {"sessionId": self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def __call__(self, method: str, **params: object) -> Any:
        """Send a command and return its result."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params, **self.page}
        self.commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Return when the page is loaded and its fonts are."""
        self("Page.enable")
        if error := self("Page.navigate", url=url).get("errorText"):
            raise RuntimeError(f"{url}: {error}")
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.value("document.fonts.ready.then(() => 0)")

    def value(self, expression: str) -> Any:
        return self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"]["value"]

    def close(self) -> None:
        self.page = {}
        self("Browser.close")
        self.process.wait(timeout=30)

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError(f"Chromium ended with exit status {self.process.wait(timeout=30)}")
            message += byte
        return json.loads(message)  # type: ignore[no-any-return]


def take(browser: Browser, page: Path, width: int, scheme: str, out: Path) -> bool:
    """Write one picture; return whether the page is as wide as its window."""
    browser("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page.resolve().as_uri())
    window, across, down = browser.value(SIZE)
    assert window == width
    clip = {"x": 0, "y": 0, "width": width, "height": min(down, MOST_HEIGHT), "scale": 1}
    shot = browser("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    out.write_bytes(base64.b64decode(shot["data"]))
    if across > width:
        print(f"{page} is {across} pixels wide in a window of {width}", file=sys.stderr)
    return bool(across <= width)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("pages", type=Path, nargs="+", metavar="PAGE.html")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    shared = os.path.commonpath([page.resolve().parent for page in args.pages])
    fits = True
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        for page, width, scheme in itertools.product(args.pages, WIDTHS, SCHEMES):
            name = "-".join(page.resolve().relative_to(shared).with_suffix("").parts)
            fits &= take(browser, page, width, scheme, args.out / f"{name}-{width}-{scheme}.png")
        browser.close()
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
