"""The options of `torchshare run` that are not options of Runtime or of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval
from typing_extensions import TypedDict

from torchshare.runtime.declared import Expected, Option
from torchshare.runtime.options import Text, WholeNumber

File = Annotated[Path, Expected("a file")]


class RunOptions(TypedDict, total=False):
    device: Annotated[Text, Option("auto (a GPU if there is one), cpu, cuda or cuda:1.", "auto", metavar="D")]
    primary: Annotated[Text, Option("the job that is protected (default: the first).", metavar="NAME")]
    success: Annotated[
        Literal["all", "primary"],
        Expected("all or primary"),
        Option("the jobs that must finish for exit status 0.", "all", metavar="all|primary"),
    ]
    on_failure: Annotated[
        Literal["continue", "stop"],
        Expected("continue or stop"),
        Option("what the other jobs do if one fails.", "continue", metavar="continue|stop"),
    ]
    max_restarts: Annotated[
        WholeNumber,
        Option(
            "times that the process is started again after a crash; the jobs resume from their checkpoints, without a "
            "job in which it crashed three times in a row.",
            metavar="N",
        ),
    ]
    output: Annotated[
        Text,
        Option(
            "where scripts print: prefix (each line with the job's name; default for several jobs), plain (default for "
            "one), or a folder that gets NAME.log per job.",
            metavar="MODE",
        ),
    ]
    timeline: Annotated[File, Option("write a trace for https://ui.perfetto.dev", metavar="OUT.json")]
    report: Annotated[File, Option("write a page: what sharing gained and cost.", metavar="OUT.html")]
    metrics_port: Annotated[
        int,
        Interval(ge=0, lt=2**16),
        Expected("a port from 0 to 65535"),
        Option("serve metrics for Prometheus at this port of 127.0.0.1 (0: a free one).", metavar="N"),
    ]
