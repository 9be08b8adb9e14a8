from __future__ import annotations

import hashlib
from urllib.parse import quote

_MAX_STEM = 120  # characters


def file_stem(job: str) -> str:
    """A job's name as part of a file name: no separators, no dots, of bounded length."""
    stem = quote(job, safe="", errors="surrogatepass").replace(".", "%2E")
    if len(stem) <= _MAX_STEM:
        return stem
    return f"{stem[: _MAX_STEM - 17]}-{hashlib.sha256(job.encode(errors='surrogatepass')).hexdigest()[:16]}"
