"""Writes the list of what is replaced into docs/isolation.md, from the tables of torchshare.isolation:
.venv/bin/python scripts/isolation_table.py"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torchshare.isolation import cuda, routing, script_patches
from torchshare.isolation.table import Table

PAGE = Path(__file__).parents[1] / "docs" / "isolation.md"
BEGIN, END = "<!-- isolation_table.py: begin -->\n", "<!-- isolation_table.py: end -->\n"
PARTS = {
    "while a runtime is open": routing.TABLES,
    "while a runtime is open on a GPU": [cuda.TABLE],
    "while a script runs": script_patches.TABLES,
}


def listed(tables: Sequence[Table]) -> list[str]:
    """Lines of a table in Markdown: one per module and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in sorted((row for table in tables for row in table.rows), key=lambda row: row.module):
        name = f"`{str(row).removeprefix(f'{row.module}.')}`" + (f" (torch {row.versions})" if row.versions else "")
        names.setdefault((row.module, row.why), []).append(name)
    return [f"| `{module}` | {', '.join(dict.fromkeys(found))} | {why} |" for (module, why), found in names.items()]


def generated() -> str:
    parts = [
        "\n".join([f"| in | {title} | why |", "|---|---|---|", *listed(tables)]) for title, tables in PARTS.items()
    ]
    return "\n\n".join(parts) + "\n"


def current(text: str) -> str:
    """The text of the page with the generated part as it should be."""
    return re.sub(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", lambda _: generated(), text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text()))
