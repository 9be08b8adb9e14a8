"""Pages of HTML as a reader sees them, and as a browser makes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "report"  # to be looked at

Table = list[list[str]]


class Page(HTMLParser):
    """The text of a page, its tables by id, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, Table] = {}
        self.policy = ""
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._data = ""
        self._open = ""  # script or style
        self._table: Table | None = None
        self.feed(text)
        self.close()

    @property
    def data(self) -> Any:
        return json.loads(self._data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of_tag = dict(attrs)
        self.tags.append((tag, of_tag))
        if tag in ("script", "style"):
            self._open = "data" if of_tag.get("id") == "data" else tag
        elif tag == "meta" and of_tag.get("http-equiv") == "Content-Security-Policy":
            self.policy = of_tag["content"] or ""
        elif tag == "table":
            self._table = self.tables.setdefault(of_tag.get("id") or "", [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th") and self._table is not None:
            self._table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = ""
        elif tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        if self._open == "data":
            self._data += data
        elif not self._open:
            self.text += data
            if self._table and self._table[-1]:
                self._table[-1][-1] += data.strip()


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name)) is not None), None)


def rendered(page: Path, *, width: int, dark: bool = False) -> tuple[Page, list[str]]:
    """The page after its scripts have run, and what the browser said on its console. Keeps a screenshot."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    scheme = "dark" if dark else "light"
    program = browser()
    assert program is not None
    command = [
        program,
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--hide-scrollbars",
    ]
    command += [f"--window-size={width},2400", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    shot = f"--screenshot={SCREENSHOTS / f'{page.stem}-{width}-{scheme}.png'}"
    dumped, _ = (
        subprocess.run([*command, how, page.as_uri()], capture_output=True, text=True, check=True, timeout=300)
        for how in ("--dump-dom", shot)
    )
    return Page(dumped.stdout), [line for line in dumped.stderr.splitlines() if "CONSOLE" in line]
