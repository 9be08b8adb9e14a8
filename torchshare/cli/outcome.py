"""What `torchshare run` tells: results and files at its end, metrics meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchshare.cli.outputs import write
from torchshare.context.rank import this_rank

if TYPE_CHECKING:
    from torchshare.context.results import Result
    from torchshare.runtime.bound import BoundReport
    from torchshare.runtime.gaps import GapReport
    from torchshare.runtime.options import JobOptions
    from torchshare.runtime.runtime import Runtime
    from torchshare.runtime.sharing import SharingReport


log = logging.getLogger("torchshare")


def files(options: Mapping[str, Any]) -> dict[str, Path | None]:
    """The outputs by option."""
    return {"--timeline": options.get("timeline"), "--report": options.get("report")}


@contextlib.contextmanager
def served_metrics(runtime: Runtime, port: int | None, resumes: bool) -> Iterator[None]:
    """Serves the metrics of the first rank. Raises ValueError if the port cannot be had; a run that resumes after
    a crash goes on without."""
    if port is None or not this_rank().is_first:
        yield
        return
    with contextlib.ExitStack() as until_the_end:
        try:
            address = until_the_end.enter_context(runtime.serve_metrics(port))
        except OSError as error:
            text = f"--metrics-port must be a free port, got {port}: {error.strerror}"
            if not resumes:
                raise ValueError(text) from None
            log.warning("no metrics: %s", text)
        else:
            print(f"torchshare: metrics at {address}", file=sys.stderr)
        yield


def show(runtime: Runtime, dropped: list[JobOptions], options: Mapping[str, Any], as_json: bool) -> int:
    """Prints the results and writes the files. Returns the exit code."""
    if this_rank().is_first:
        _print(runtime, dropped, as_json)
    status = _status(runtime, dropped, options.get("success", "all"))
    for path, save in zip(files(options).values(), (runtime.write_timeline, runtime.write_report), strict=True):
        if path is not None:
            status = write(this_rank().file(path), save) or status
    return status


def _status(runtime: Runtime, dropped: list[JobOptions], success: str) -> int:
    states = [(result.priority, result.state) for result in runtime.results.values()]
    states += [(each.get("priority", ""), "dropped") for each in dropped]
    return 0 if all(state == "finished" for level, state in states if success != "primary" or level == "primary") else 1


def _print(runtime: Runtime, dropped: list[JobOptions], as_json: bool) -> None:
    bounds, gaps = runtime.bound_report(), runtime.gap_report()
    if as_json:
        names = [str(each["name"]) for each in dropped]
        print(_as_json(runtime.results, bounds, gaps, runtime.sharing_report(), names))
        return
    print(runtime.results)
    sharing = runtime.sharing_report()
    lines = [*([sharing] if sharing.answer else []), *bounds, *gaps]
    if lines:
        print("", *lines, sep="\n")


def _as_json(
    results: Mapping[str, Result],
    bounds: list[BoundReport],
    gaps: list[GapReport],
    sharing: SharingReport,
    dropped: list[str],
) -> str:
    document = {
        "jobs": [{**_plain(result), **sharing.jobs[result.name]} for result in results.values()],
        "verdict": sharing.verdict,
        "bounds": [dataclasses.asdict(bound) for bound in bounds],
        "gaps": [dataclasses.asdict(gap) for gap in gaps],
        "dropped": dropped,
    }
    return json.dumps(document, indent=2)


def _plain(result: Result) -> dict[str, Any]:
    from torchshare.context.errors import described

    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    del fields["value"]
    error = fields.pop("exception")
    for name in ("requests", "periods"):
        fields[name] = None if fields[name] is None else dataclasses.asdict(fields[name])
    return {**fields, "error": None if error is None else described(error)}
