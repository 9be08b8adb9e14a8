"""Names and other text of users, made fit for a terminal and for file names."""

from __future__ import annotations

import hashlib
import logging
from urllib.parse import quote

_MAX_STEM = 120  # characters


def escaped(text: str, keep: str = "") -> str:
    """The text with control characters and lone surrogates as escapes, so that it cannot move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def escape_message(record: logging.LogRecord) -> bool:
    """A filter of loggers: names of jobs in messages are escaped."""
    record.msg, record.args = escaped(record.getMessage(), keep="\n\t"), ()
    return True


def file_stem(job: str) -> str:
    """A job's name as part of a file name: no separators, no dots, of bounded length."""
    stem = quote(job, safe="", errors="surrogatepass").replace(".", "%2E")
    if len(stem) <= _MAX_STEM:
        return stem
    return f"{stem[: _MAX_STEM - 17]}-{hashlib.sha256(job.encode(errors='surrogatepass')).hexdigest()[:16]}"
