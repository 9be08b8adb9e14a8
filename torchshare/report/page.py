"""Reports as one HTML file each: it loads nothing, and works without JavaScript."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from torchshare.context import interpreter_lock
from torchshare.context.names import escaped
from torchshare.durable.files import replacing
from torchshare.report.figures import svg
from torchshare.report.numbers import number, percent, seconds, size
from torchshare.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_TEXT = 800  # characters; a page stays small whatever its texts are


def write(
    path: str | os.PathLike[str], template: str, document: Mapping[str, Any], figures: Mapping[str, Figure]
) -> None:
    """Writes a report.

    Args:
        template: the name of a file of templates/.
        document: what the report says, of types that JSON has; the page contains it as JSON, too.
        figures: charts by name. Their curves have the ids that `curve_id` gives.

    Raises:
        OSError: if the file cannot be written.
    """
    page = render(template, document, figures)
    with replacing(path) as file:
        file.write(page.encode())


def render(template: str, document: Mapping[str, Any], figures: Mapping[str, Figure]) -> str:
    """The page as text."""
    document = _bounded(document)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, seconds=seconds, size=size, percent=percent)
    script = (_TEMPLATES / "script.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        document=document,
        data=Markup(json.dumps(document, ensure_ascii=False).replace("<", "\\u003c")),
        figures={name: Markup(svg(name, figure)) for name, figure in figures.items()},
        style=Markup((_TEMPLATES / "style.css").read_text()),
        script=Markup(script),
        script_digest=digest,
    )


def origin(facts: Mapping[str, str]) -> dict[str, str]:
    """What a page names as its origin, and further facts."""
    return {
        "command": shlex.join(sys.argv),
        **facts,
        "versions": f"torchshare {__version__}, Python {interpreter_lock.described()}",
        "written": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def shortened(text: str, most: int) -> str:
    """The text without its middle if it has more characters."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[3 - (most + 1) // 2 :]}"


def _bounded(value: Any) -> Any:
    """A document with all its texts shortened, and with control characters and lone surrogates as escapes."""
    if isinstance(value, str):
        return shortened(escaped(value, keep="\n"), _MAX_TEXT)
    if isinstance(value, Mapping):
        return {key: _bounded(each) for key, each in value.items()}
    return [_bounded(each) for each in value] if isinstance(value, list | tuple) else value
