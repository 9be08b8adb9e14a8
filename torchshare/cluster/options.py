"""The options of a job on a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Interval, Predicate

from torchshare.cluster import array
from torchshare.runtime.declared import Expected, Option
from torchshare.runtime.options import CommonJobOptions, Duration, Name, PositiveInt

SPLITS = [2**power for power in range(8)]
"""The numbers of sub-batches that jobs may run in while they share."""


class SubmitOptions(CommonJobOptions, total=False):
    """The keywords of torchshare.cluster.submit."""

    gpus: Annotated[
        PositiveInt,
        Option(
            "number of devices. With several, the job runs on each as a rank of its own, with the environment that "
            "torchrun gives its processes; what its first rank returns is its result.",
            1,
            metavar="N",
        ),
    ]
    memory: Annotated[
        Annotated[int, Interval(ge=1, lt=2**63), Expected("a positive integer below 2**63")] | None,
        Option(
            "bytes that the job needs on its device; its budget there. Default: that of its `profile`.", metavar="BYTES"
        ),
    ]
    duration: Annotated[
        Annotated[float, Interval(gt=0, le=1e12), Expected("a positive number of seconds, at most 1e12")] | None,
        Option(
            "seconds that it would take alone, as far as known. Default: that of its `profile`, else as long as the "
            "last one of its model.",
            metavar="S",
        ),
    ]
    deadline: Annotated[
        Duration | None,
        Option(
            "time after its submission by which it must have finished. With the policies edf and pair-edf, a job is "
            "refused that is predicted to end late, or to make an accepted one late.",
            metavar="TIME",
        ),
    ]
    after: Annotated[
        Name | Sequence[Name] | None,
        Expected("a job's name or several"),
        Option(
            'the jobs of the queue whose ends it waits for, by name: "a" or "any:a", any end; "ok:a", it must finish: '
            "if that fails or is cancelled, so is this one. Slurm's afterany: and afterok: mean the same. `Job.after` "
            "has their results.",
            metavar="JOB[,JOB]",
        ),
    ]
    sub_batches: Annotated[
        Annotated[int, Predicate(lambda number: number in SPLITS), Expected(f"one of {', '.join(map(str, SPLITS))}")],
        Option(
            "maximum number of sub-batches into which its batches may be split, so that it fits beside another job; 1: "
            "none. Its weights are then those of `sub_batch`, not those of whole batches. Needs a `profile`.",
            1,
            metavar="N",
        ),
    ]
    model: Annotated[
        Annotated[str, Expected("a string")] | None,
        Option(
            "jobs of one model have the same interference ratios. Default: the script's or function's name. The names "
            "in profiles are models.",
            metavar="MODEL",
        ),
    ]
    env: Annotated[
        Annotated[dict[str, Any], Expected("a dict of JSON values with strings as keys")] | None,
        Option("Ray's runtime_env. Only jobs with equal ones share a device.", metavar="JSON"),
    ]
    folder: Annotated[
        str | os.PathLike[str] | None,
        Expected("a folder"),
        Option("the working folder of scripts, on every node. Default: this process's.", metavar="DIR"),
    ]


class ArrayOptions(SubmitOptions, total=False):
    """The options of the command, and the keywords of torchshare.cluster.submit_array."""

    array: Annotated[
        Annotated[str, Predicate(array.is_array), Expected(array.EXPECTED)] | None,
        Option(
            "submits the job once for each of these indices, as NAME_0, NAME_1 and so on, with its index in the "
            'variable TORCHSHARE_ARRAY_INDEX: "0-15", "0,3,7-9", "0-15:5"; "0-99%4": at most 4 of them run at once.',
            metavar="INDICES",
        ),
    ]
