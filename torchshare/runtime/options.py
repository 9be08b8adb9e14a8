"""The options of Runtime and Runtime.submit; see `torchshare.runtime.declared`.

An option that C++ uses is also a field of RuntimeOptions or JobSpec with the same name (csrc/runtime,
csrc/bindings/bind_runtime.cpp).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval, Predicate
from typing_extensions import TypedDict

from torchshare.checkpoints.interval import EXPECTED, is_interval
from torchshare.context import durations
from torchshare.runtime.declared import YES_NO, Expected, Option

if TYPE_CHECKING:
    from torchshare.profiles.profile import Profile

WholeNumber = Annotated[int, Interval(ge=0), Expected("a non-negative integer")]
PositiveInt = Annotated[int, Interval(ge=1, lt=2**31), Expected("a positive integer below 2**31")]
SecondsAboveZero = Annotated[float, Interval(gt=0, lt=float("inf")), Expected("a positive number of seconds")]
Duration = Annotated[str | float, Predicate(durations.is_duration), Expected(durations.EXPECTED)]
Text = Annotated[str, Expected("a string")]
Flag = Annotated[bool, Expected("True or False")]
Every = Annotated[str | int, Predicate(is_interval), Expected(EXPECTED)]
Name = Annotated[
    str,
    Predicate(lambda name: len(name) <= 255 and not any("\ud800" <= c <= "\udfff" for c in name)),
    Expected("a string of at most 255 characters without lone surrogates"),
]


class RuntimeOptions(TypedDict, total=False):
    """The keywords of Runtime."""

    policy: Annotated[
        Text,
        Option(
            'which job may enter an op. "priority": any; the device\'s scheduler orders them (SCHED_IDLE for lower '
            'jobs on the CPU, stream priorities on a GPU). "strict": a job waits while a higher one is inside an op '
            "or was within `grace` seconds; on a GPU, also while the higher one's stream has work. "
            '"best_fit": fills a gap if the op is expected to end before the higher job returns, however short the '
            "gap (FIKIT, arXiv 2311.10359). It learns the durations of ops and gaps, or reads them from the jobs' "
            'profiles. See `gap_report`. "resource": as "best_fit", and an op that moves memory may run beside one '
            'that computes, or vice versa. "edf": of periodic jobs, the one whose deadline comes first; other ops run '
            "in between if they end before the next release. See `Job.periods`.",
            "priority",
            metavar="NAME",
        ),
    ]
    grace: Annotated[
        float,
        Interval(ge=0, le=1),
        Expected("between 0 and 1 seconds"),
        Option("seconds that a higher job must have been outside ops before a lower job may enter one.", 200e-6, "S"),
    ]
    max_wait: Annotated[
        SecondsAboveZero | None,
        Option(
            "seconds after which an op of a lower job is admitted regardless of the policy. Default: never.",
            metavar="S",
        ),
    ]
    run_ahead: Annotated[
        Annotated[float, Interval(gt=0, le=1), Expected("a positive number of seconds, at most 1")] | None,
        Option(
            "on a GPU, seconds of predicted work that a lower job may have launched and the GPU has not finished; a "
            "returning higher job waits for no more than that. Default: 500 us with `max_slowdown`, `secondary_share`, "
            'or a policy other than "priority". Jobs that `slo` holds have no limit without it.',
            metavar="S",
        ),
    ]
    device_priority: Annotated[
        Text,
        Option(
            'how the device itself orders jobs. On a CPU, "idle": threads of lower jobs run when no other thread of '
            'the machine wants the core (SCHED_IDLE); "nice": they get about a tenth of the share of an ordinary '
            'thread; "auto": "nice" where other processes keep the cores busy when a lower job starts, else "idle". '
            '"none" leaves the order to the policy. A GPU orders streams unless it is "none".',
            "auto",
            metavar="HOW",
        ),
    ]
    max_slowdown: Annotated[
        float | None,
        Expected("a number"),
        Option(
            "bound on the primary's slowdown, 0.05 for 5 %. Its step times, with and without the others, determine how "
            "much the others may run. See `bound_report`.",
            metavar="X",
        ),
    ]
    secondary_share: Annotated[
        float | None,
        Expected("a number"),
        Option("fraction of the time in which lower jobs may run, instead of `max_slowdown`.", metavar="SHARE"),
    ]
    on_disagree: Annotated[
        Literal["error", "primary"],
        Expected('"error" or "primary"'),
        Option(
            "what happens to a job that wants another value of a setting of torch than a higher job runs with, where a "
            'process has one, such as `torch.set_default_dtype`. "error": it fails. "primary": it goes on with the '
            "other's value, and a warning names both.",
            "error",
            metavar="HOW",
        ),
    ]
    ranks: Annotated[
        Flag,
        Option(
            "run the same jobs on all ranks, if torchrun started this process: they start, suspend and end together. "
            "False: this process runs jobs of its own, whatever other ranks do.",
            True,
        ),
    ]
    max_concurrent: Annotated[
        PositiveInt | None,
        Option(
            "most jobs that run at once. The others wait until one ends or is suspended with `spill=True`; the highest "
            'priority starts first, then in the order of submission, start="auto" last. A job that was spilled waits '
            "for memory only. Default: no limit.",
            metavar="N",
            former="resident",
        ),
    ]
    stuck_after: Annotated[
        float,
        Interval(ge=0, lt=float("inf")),
        Expected("a non-negative number of seconds"),
        Option(
            "seconds after which a job that neither runs ops nor waits for input, at the gate or to be resumed is "
            "named in a warning, with its Python stack; once, until it goes on. 0: never.",
            300.0,
            metavar="S",
        ),
    ]
    shared_patches: Annotated[
        Flag,
        Option(
            "let jobs replace, for all jobs, values of shared packages that cannot be each job's own; otherwise such a "
            "job fails if another uses the package.",
            False,
            metavar=YES_NO,
        ),
    ]
    timeline_capacity: Annotated[
        PositiveInt,
        Option("events kept per job, and of states and decisions; the oldest are dropped first.", 1_000_000, "N"),
    ]
    keep: Annotated[
        int,
        Interval(ge=0, lt=2**31),
        Expected("a non-negative integer below 2**31"),
        Option("ended jobs whose events the timeline keeps, the last ones. Results of all jobs are kept.", 20, "N"),
    ]
    checkpoint: Annotated[
        str | os.PathLike[str] | None,
        Expected("a folder"),
        Option(
            "folder for the jobs' checkpoints: what they `track`, their random state and their place in the loader, "
            "written at the end of a step; the last two are kept. On SIGTERM, every job writes one.",
            metavar="DIR",
        ),
    ]
    every: Annotated[
        Every,
        Option(
            'how often checkpoints are written: a number of steps, or a time such as "30s" or "5min". Jobs of '
            "several ranks need a number of steps.",
            "5min",
            metavar="INTERVAL",
        ),
    ]
    resume: Annotated[
        Flag,
        Option(
            "go on from the newest usable checkpoint of each job. A job without one starts from its beginning.",
            False,
            metavar=YES_NO,
        ),
    ]


class CommonJobOptions(TypedDict, total=False):
    """The options that a job has in a Runtime and on a cluster."""

    name: Annotated[
        Name | None, Option("unique among the jobs of this runtime that have not ended. Default: the function's name.")
    ]
    priority: Annotated[Text, Option('"primary", "secondary" or "level-0" (= primary) to "level-9".', "secondary", "P")]
    sub_batch: Annotated[
        int | None,
        Interval(ge=1),
        Expected("a positive integer"),
        Option("rows that run at once; the default of `job.batches`.", metavar="N"),
    ]
    threads: Annotated[
        int | None,
        Interval(ge=1, le=1024),
        Expected("an integer from 1 to 1024"),
        Option(
            "intra-op threads. Default: `torch.get_num_threads()`. Bit-identity holds at equal `threads`.", metavar="N"
        ),
    ]
    seed: Annotated[
        int,
        Interval(ge=0, lt=2**64),
        Expected("an integer from 0 to 2**64 - 1"),
        Option(
            "seed of the job's random state: torch, `random` and `numpy.random` start as if seeded with it.",
            0,
            metavar="N",
        ),
    ]
    steps: Annotated[
        WholeNumber | None,
        Option(
            'steps of the whole job, with those before a resume, if known; "auto" uses it. Without `steps` or '
            '`epochs`, "auto" uses the length of the loader, else assumes that the job is as long as the other.',
            metavar="N",
        ),
    ]
    epochs: Annotated[
        WholeNumber | None, Option("passes of the whole job over its loader, if known; see `steps`.", metavar="N")
    ]
    profile: Annotated[
        Profile | str | os.PathLike[str] | None,
        Expected("a Profile or the path of one"),
        Option("a profile measured by `torchshare.profile`, or its file.", metavar="FILE"),
    ]
    meter_memory: Annotated[
        Flag,
        Option(
            "count the job's tensors for `Result.memory_peak`; costs a lock per allocation. Always on on a GPU.",
            False,
            metavar=YES_NO,
        ),
    ]
    resplit: Annotated[
        Flag,
        Option(
            "repeat a batch that runs out of memory in sub-batches of half the rows, and go on with those: "
            "`Batch.backward`, `Job.graph` and compiled steps of a job with a `memory_budget` or on a GPU.",
            True,
            metavar=YES_NO,
        ),
    ]
    regrow_after: Annotated[
        WholeNumber,
        Option(
            "batches after which sub-batches that were halved grow again; 0: never. Doubled each time they grew too "
            "early.",
            100,
            metavar="N",
        ),
    ]
    cache_memory: Annotated[
        Flag,
        Option(
            "on the CPU, keep blocks of 256 KiB and more that the job's tensors free, for its next ones. What is in "
            "use and what is cached stay below the peak of the last 20 s plus an eighth (at least 32 MiB), and below "
            "`memory_budget`; see `torchshare.cache_memory`.",
            True,
            metavar=YES_NO,
        ),
    ]
    sms: Annotated[
        PositiveInt | None,
        Option(
            "streaming multiprocessors of the GPU that the job's work may use (a green context). The driver rounds the "
            "number; `Job.sms` is the result.",
            metavar="N",
        ),
    ]
    record_ops: Annotated[Flag, Option("time every op of the job, for `torchshare.profile`.", False)]


class JobOptions(CommonJobOptions, total=False):
    """The keywords of Runtime.submit."""

    start: Annotated[
        str | float,
        Expected("a string or a number of seconds"),
        Option(
            'when the job starts: "now", "after:<job>" (when that job has ended), "step:<k>" (when the primary has '
            "done k steps, with those before a resume, or has ended), seconds after submission, or "
            '"auto": when the average completion time of the pair is least. "auto" plans from profiles; without '
            "them, it first runs a few steps of each job alone and of both. It may hold either job; with "
            "`max_slowdown`, only the lower one.",
            "now",
            metavar="WHEN",
        ),
    ]
    after: Annotated[
        str | Sequence[str] | None,
        Expected("a job's name or several"),
        Option(
            'the jobs whose ends it waits for: "a" or "any:a", any end; "ok:a", it must finish: if that fails or is '
            "cancelled, so is this one. Slurm's afterany: and afterok: mean the same. Then `start` applies, seconds "
            "counted from there. `Job.after` has their results.",
            metavar="JOB[,JOB]",
        ),
    ]
    retries: Annotated[
        WholeNumber,
        Option(
            "times that the job starts again if it fails, from its last checkpoint if it has one: after 1 s, 2 s, 4 s "
            "and so on, 60 s at most. Jobs that wait for it wait for its last attempt.",
            0,
            metavar="N",
        ),
    ]
    retry_on: Annotated[
        type[BaseException] | tuple[type[BaseException], ...],
        Expected("an exception type or a tuple of them"),
        Option(
            "the exceptions after which it starts again. Default: all, and `sys.exit` with another status than 0.",
            (Exception, SystemExit),
        ),
    ]
    slo: Annotated[
        Text | None,
        Option(
            'a promise about the latencies of its requests, such as "p99<20ms" (in us, ms or s), for `job.requests` '
            "and `job.serve`. Lower jobs are limited so that it is kept. Not together with `max_slowdown` or "
            "`secondary_share`.",
            metavar="PROMISE",
        ),
    ]
    period: Annotated[
        SecondsAboveZero | None,
        Option(
            "seconds between two releases of a periodic job, for `job.periods`. It is a primary job by default.",
            metavar="S",
        ),
    ]
    deadline: Annotated[
        Duration | None,
        Option(
            'the time from its submission by which the job should have ended, such as "2h" or 90 (seconds); with '
            "`period`, from a release by which its unit must have ended (default: the period). Jobs with "
            '`start="auto"` are started, held and paired so that the job\'s is kept, if that is possible and the '
            "number of its steps is known; `Result.lateness_s` is the outcome.",
            metavar="TIME",
        ),
    ]
    unit_time: Annotated[
        SecondsAboveZero | None,
        Option(
            "seconds that a unit of a periodic job takes alone, at most. Default: that of its `profile`, else measured "
            "once 60 units have ended.",
            metavar="S",
        ),
    ]
    memory_budget: Annotated[
        Annotated[int, Interval(ge=1, lt=2**63), Expected("a positive integer below 2**63")] | None,
        Option(
            "bytes that the job's tensors may occupy on the device, including workspaces of cuBLAS and cuDNN. An "
            "allocation beyond it raises `BudgetExceeded` in this job. Default on a GPU: what its `profile` says it "
            "needs and an eighth more; without one, while it shares the GPU, what it holds and an even part of what "
            "is free. No limit on the CPU.",
            metavar="BYTES",
        ),
    ]
