"""Which errors each CUDA call may return, as the comments of the toolkit's headers say."""

from __future__ import annotations

import re
from pathlib import Path

COMMENT = re.compile(
    r"/\*\*((?:(?!\*/).)*?)\*/\s*(?:#[^\n]*\n\s*)*(?:extern |CUresult )[^;{]*?\b(cu(?:da)?[A-Z]\w+)\(", re.S
)
RETURNS = re.compile(r"\\returns?\b(.*?)(?=\\note|\\sa|\\par|\Z)", re.S)
NAME = re.compile(r"::(cudaError\w+|CUDA_ERROR_\w+)")
NUMBER = re.compile(r"^\s*(cudaError\w+|CUDA_ERROR_\w+)\s*=\s*(\d+)", re.M)

# A call whose comment has \notefnerr "may also return error codes from previous, asynchronous launches".
ASYNCHRONOUS = "cudaErrorLaunchFailure"


def documented(include: Path) -> dict[str, dict[str, int]]:
    """Returns {call: {error's name: its number}} of the runtime and of the driver."""
    numbers: dict[str, int] = {}
    for header in ("driver_types.h", "cuda.h"):
        numbers.update((name, int(value)) for name, value in NUMBER.findall((include / header).read_text()))
    calls: dict[str, dict[str, int]] = {}
    for header in ("cuda_runtime_api.h", "cuda.h"):
        for comment, call in COMMENT.findall((include / header).read_text()):
            returns = RETURNS.search(comment)
            names = NAME.findall(returns.group(1)) if returns else []
            if "\\notefnerr" in comment:
                names.append(ASYNCHRONOUS)
            calls[call] = {name: numbers[name] for name in names if name in numbers}
    return calls
