"""Names and other text of users, made fit for a terminal."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Container, Iterator


def escaped(text: str, keep: str = "") -> str:
    """The text with control characters and lone surrogates as escapes, so that it cannot move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


class Lines(str):
    """An argument of a message that keeps its line breaks, such as a traceback."""

    __slots__ = ()


def escape_message(record: logging.LogRecord) -> bool:
    """A filter of loggers: names of jobs and other text in messages are escaped; none can begin a line of its own."""
    if isinstance(record.args, tuple):
        record.args = tuple(escaped(e) if isinstance(e, str) and not isinstance(e, Lines) else e for e in record.args)
    record.msg, record.args = escaped(record.getMessage(), keep="\n\t"), ()
    return True


def numbered(wanted: str) -> Iterator[str]:
    """That name, and then the same with numbers."""
    yield wanted
    yield from (f"{wanted}-{number}" for number in itertools.count(2))


def free_name(wanted: str, taken: Container[str]) -> str:
    """That name, with a number if it is taken."""
    return next(name for name in numbered(wanted) if name not in taken)
