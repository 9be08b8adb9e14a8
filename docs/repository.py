"""Files of the repository in the site: those of PAGES are pages, other linked ones are downloads."""

import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    ROOT / "README.md": DOCS / "start.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing.md",
    ROOT / "benchmarks" / "results" / "README.md": DOCS / "results.md",
}


def insert(_app, name, source):
    """Replaces a page's comments "include FILE", and its links to files outside of docs/."""
    folder = (DOCS / name).parent
    text = linked(source[0], folder, folder)
    source[0] = re.sub(r"<!-- include (\S+) -->", lambda found: included(folder / found[1], folder), text)


def included(file, folder):
    return linked(file.read_text(), file.parent, folder)


def linked(text, origin, folder):
    """A text of a file in `origin`, with links that hold in `folder`."""

    def link(found):
        target = (origin / found[1]).resolve()
        if not target.exists():
            return found[0]  # is code
        page = PAGES.get(target, target)
        is_page = page.suffix != ".md" or DOCS in page.parents
        return (
            f"]({'' if is_page else 'path:'}{os.path.relpath(page, folder)}{found[2] if is_page and found[2] else ''})"
        )

    return re.sub(r"\]\((?!https?:|#|path:)([^)#\s]+)(#[^)\s]*)?\)", link, text)
