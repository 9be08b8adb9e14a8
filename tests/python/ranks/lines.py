"""Output of ranks."""

import sys


def line(text: object) -> None:
    """Prints a line in one write: ranks share the stream, and `print` writes the line's end by itself."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
