"""The tables of SJF-BSBF (arXiv 2407.13088), simulated, beside what the paper says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from torchshare.simulation import pollux
from torchshare.simulation.adaptdl import JOBS, WORKLOADS, read_packaged
from torchshare.simulation.generated import at_load, generate
from torchshare.simulation.job_trace import Limits, Trace
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import SMALL_JOB_GPUS, Case, Setting, simulate_all, summarize

POLICIES = ("fifo", "sjf", "tiresias", "sjf-ffs", "sjf-bsbf", "pair-srsf")
RATIO = 1.25  # where a table does not say another
RATIOS = tuple(round(1 + tenth / 10, 1) for tenth in range(11))
LOADS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
GPU_MEMORY_GIB = 16.0  # of a T4, on which the jobs' step times were measured
_PREEMPTIVE, _FFS = -0.27, -0.17  # the paper's claims
_ADAPTDL = "AdaptDL's own"  # simulator
# Average completion times in seconds, by JOBS: results-jobload of AdaptDL's repository (traces/README.md).
_ADAPTDL_JCT = {
    "tiresias": (2091.5, 4038.2, 6182.3, 10039.5),
    "optimus": (2395.4, 5681.9, 7234.6, 9721.0),
    "pollux": (1534.0, 2751.1, 3685.4, 5289.2),
}
_SHOWN = ("1.0", "1.2", "1.5", "2.0")  # ratios beside a claim

Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """Traces for a cluster."""

    name: str
    title: str
    traces: list[Trace]
    setting: Setting


@dataclass(frozen=True)
class Point:
    """What one column of a sweep, or the one table of a workload, simulates."""

    label: str
    traces: list[Trace]
    setting: Setting
    ratio: float = RATIO

    @property
    def cases(self) -> list[Case]:
        ratios = uniform(self.ratio)
        return [
            Case(trace, policy, ratios, self.setting, f"{self.ratio:g}") for policy in POLICIES for trace in self.traces
        ]


@dataclass(frozen=True)
class Part:
    """One table. Rows are those of `summarize`, with the column `varied` if the table is a sweep. Beside them,
    `others` has average completion times of other policies, by label, and `adaptive` asks for those of `pollux`."""

    name: str
    title: str
    note: str
    points: list[Point]
    varied: str = ""
    others: dict[str, dict[str, float]] = field(default_factory=dict)
    adaptive: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def jobs(self) -> int:
        """The number of jobs to simulate."""
        policies = len(POLICIES) + (1 if self.adaptive else 0)
        return policies * sum(len(trace.names) for point in self.points for trace in point.traces)

    def row(self, policy: str, label: str) -> Row:
        return next(row for row in self.rows if (row["policy"], row.get(self.varied, label)) == (policy, label))

    def figures(self) -> list[Row]:
        """The rows without spreads, rounded, and the others."""
        others = [
            {"policy": policy, self.varied: label, "avg_jct_s": average}
            for policy, averages in self.others.items()
            for label, average in averages.items()
        ]
        return [
            {
                name: round(value, 4) if isinstance(value, float) else value
                for name, value in row.items()
                if not name.endswith("_spread")
            }
            for row in [*self.rows, *others]
        ]

    def against(self, policy: str, baseline: str) -> dict[str, float]:
        """Average completion time / that of the baseline - 1, by label."""
        return {
            point.label: self._average(policy, point.label) / self._average(baseline, point.label) - 1
            for point in self.points
        }

    def _average(self, policy: str, label: str) -> float:
        other = self.others.get(policy)
        return float(self.row(policy, label)["avg_jct_s"]) if other is None else other[label]

    def cells(self) -> list[list[str]]:
        """The table as text; the first line has the headings."""
        return self._sweep_cells() if self.varied else self._policy_cells()

    def _policy_cells(self) -> list[list[str]]:
        times = ("median_jct_s", "p99_jct_s", "avg_jct_small_s", "avg_jct_large_s", "avg_queue_s", "makespan_s")
        against = {policy: self.against(policy, "tiresias")[""] for policy in POLICIES}
        return [
            ["policy", "avg JCT", "vs tiresias", "median", "p99", "small jobs", "large jobs", "avg queue", "makespan"],
            *(
                [
                    row["policy"],
                    f"{row['avg_jct_s']:,.0f}",
                    _change(against[row["policy"]]),
                    *(f"{row[name]:,.0f}" for name in times),
                ]
                for row in self.rows
            ),
        ]

    def _sweep_cells(self) -> list[list[str]]:
        labels = [point.label for point in self.points]
        lines = [[self.varied, *labels]]
        lines += [
            [policy, *(f"{self._average(policy, label):,.0f}" for label in labels)]
            for policy in [*POLICIES, *self.others]
        ]
        for policy, baseline in [*_COMPARED, *(_COMPARED_ADAPTIVE if self.adaptive else ())]:
            against = self.against(policy, baseline)
            lines.append([f"{policy} vs {baseline}", *(_change(against[label]) for label in labels)])
        for policy in POLICIES[3:]:
            shared = [f"{self.row(policy, label)['shared_fraction']:.0%}" for label in labels]
            lines.append([f"{policy}, time shared", *shared])
        return lines


_COMPARED = (("sjf-bsbf", "tiresias"), ("sjf-bsbf", "sjf-ffs"), ("pair-srsf", "sjf-bsbf"))
_COMPARED_ADAPTIVE = (
    ("pair-srsf", "tiresias"),
    (pollux.NAME, "tiresias"),
    (f"{_ADAPTDL} pollux", f"{_ADAPTDL} tiresias"),
    (pollux.NAME, f"{_ADAPTDL} pollux"),
)


def _change(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.0%}"  # no -0%


@dataclass(frozen=True)
class Claim:
    """What the paper says of SJF-BSBF's average completion time, and what is found here."""

    paper: str
    workload: str
    here: str
    reached: str  # where the change is at least the one that the paper says


def workloads() -> list[Workload]:
    small, large = (Setting(gpus=gpus, gpu_memory_gib=GPU_MEMORY_GIB) for gpus in (16, 64))
    known = read_packaged("adaptdl:240", Limits(large.gpus, GPU_MEMORY_GIB))
    few = [generate(30, _limits(small), mix=None, load=1.5, seed=seed) for seed in range(WORKLOADS)]
    many = [generate(480, _limits(large), mix=None, jobs_per_hour=60, seed=seed) for seed in range(WORKLOADS)]
    return [
        Workload("small", "16 GPUs, 30 jobs", few, small),
        Workload("known", "64 GPUs, 240 jobs", known, large),
        Workload("many", "64 GPUs, 480 jobs", many, large),
    ]


def _limits(setting: Setting) -> Limits:
    return Limits(setting.gpus, setting.gpu_memory_gib)


_NOTES = {
    "small": "Generated: jobs drawn from AdaptDL's of at most 16 GPUs, at a load of 1.5.",
    "known": "AdaptDL's workloads.",
    "many": "Generated: jobs drawn from AdaptDL's, 60 an hour; twice as many in 8 hours as above.",
}


def parts() -> list[Part]:
    """All tables, not simulated yet."""
    found = workloads()
    known = found[1]
    tables = [
        Part(each.name, f"{each.title}, ratio {RATIO:g}", _NOTES[each.name], [Point("", each.traces, each.setting)])
        for each in found
    ]
    tables += [
        Part(
            f"{each.name}_ratios",
            f"{each.title}: average JCT over the interference ratio",
            "",
            [Point(f"{ratio:.1f}", each.traces, each.setting, ratio) for ratio in RATIOS],
            "ratio",
        )
        for each in found
    ]
    limits = _limits(known.setting)
    drawn = [generate(240, limits, mix=None, load=LOADS[0], seed=seed) for seed in range(WORKLOADS)]
    loads = {load: [at_load(trace, load) for trace in drawn] for load in LOADS}
    tables.append(
        Part(
            "loads",
            f"64 GPUs, 240 jobs: average JCT over the load, ratio {RATIO:g}",
            "Generated. Load: GPU time that the jobs need / GPU time of the cluster while they arrive; AdaptDL's "
            "workloads of 240 jobs have 1.4 to 4.0.",
            [Point(f"{load:g}", traces, known.setting) for load, traces in loads.items()],
            "load",
        )
    )
    memories = {
        "whole batches": replace(known.setting, largest_split=1),
        "sub-batches": known.setting,
        "unlimited memory": replace(known.setting, gpu_memory_gib=0.0),
    }
    tables += [
        Part(
            f"memory_{ratio:g}",
            f"64 GPUs, 240 jobs: average JCT with and without sub-batches, ratio {ratio:g}",
            "",
            [Point(label, known.traces, setting, ratio) for label, setting in memories.items()],
            "memory",
        )
        for ratio in (1.0, RATIO)
    ]
    traces = {jobs: read_packaged(f"adaptdl:{jobs}", limits) for jobs in JOBS}
    tables.append(
        Part(
            "jobs",
            f"64 GPUs: average JCT over the number of jobs, ratio {RATIO:g}, beside policies that change the jobs",
            "AdaptDL's workloads. Unlike for unlike: Pollux and Optimus change the GPUs of jobs, Pollux also their "
            f"batch sizes, and Pollux knows no durations. '{pollux.NAME}' is a simple policy of its kind "
            f"(docs/papers.md); a restart costs it {pollux.RESTART_COST_S:g} s, as in AdaptDL.",
            [Point(str(jobs), traces[jobs], known.setting) for jobs in JOBS],
            "jobs",
            {
                f"{_ADAPTDL} {policy}": dict(zip(map(str, JOBS), averages, strict=True))
                for policy, averages in _ADAPTDL_JCT.items()
            },
            adaptive=True,
        )
    )
    return tables


def simulate_parts(
    tables: Sequence[Part], progress: Callable[[int, int], object] = lambda case, ended: None
) -> list[Part]:
    """The tables with their rows. Calls `progress(index of a case, number of its ended jobs)`."""
    cases = [case for part in tables for point in part.points for case in point.cases]
    outcomes = iter(simulate_all(cases, progress))
    adapted = itertools.count(len(cases))
    found = []
    for part in tables:
        rows = [
            {**row, **({part.varied: point.label} if part.varied else {})}
            for point in part.points
            for row in summarize(list(itertools.islice(outcomes, len(point.cases))))
        ]
        averages = {point.label: _adaptive(point, adapted, progress) for point in part.points if part.adaptive}
        others = {pollux.NAME: averages, **part.others} if part.adaptive else part.others
        found.append(replace(part, rows=rows, others=others))
    return found


def _adaptive(point: Point, index: Iterator[int], progress: Callable[[int, int], object]) -> float:
    """The average completion time."""
    averages = []
    for trace in point.traces:
        averages.append(pollux.simulate_adaptive(trace, point.setting.gpus // point.setting.gpus_per_node).mean())
        progress(next(index), len(trace.names))
    return float(np.mean(averages))


def claims(tables: Sequence[Part]) -> list[Claim]:
    """What the paper claims, and where the change is at least as great in these tables."""
    sweeps = [part for part in tables if part.varied == "ratio"]
    found = []
    for paper, baseline, limit in (
        ("27 to 33 % below preemptive schedulers, here Tiresias", "tiresias", _PREEMPTIVE),
        ("up to 17 % below SJF-FFS", "sjf-ffs", _FFS),
    ):
        for sweep in sweeps:
            against = sweep.against("sjf-bsbf", baseline)
            here = ", ".join(f"{_change(against[label])} at {label}" for label in _SHOWN)
            found.append(Claim(paper, sweep.title.partition(":")[0], here, reach(against, limit)))
    return found


def verdict(tables: Sequence[Part]) -> str:
    """The claims in one sentence each, at the ratio of the tables."""
    shown = [part for part in tables if not part.varied]
    changes = {
        baseline: ", ".join(
            f"{_change(part.against('sjf-bsbf', baseline)[''])} ({part.title.rpartition(', ')[0]})" for part in shown
        )
        for baseline in ("tiresias", "sjf-ffs")
    }
    return (
        f"At a ratio of {RATIO:g}, the average JCT of SJF-BSBF against Tiresias is {changes['tiresias']}; the paper "
        f"says -27 to -33 %. Against SJF-FFS it is {changes['sjf-ffs']}; the paper says up to -17 %."
    )


def claim_cells(found: Sequence[Claim]) -> list[list[str]]:
    """The claims as a table; the first line has the headings."""
    return [
        ["average JCT of SJF-BSBF: the paper", "workload", "here, by ratio", "at least 27, 17 % below"],
        *([*vars(claim).values()] for claim in found),
    ]


def reach(changes: dict[str, float], limit: float) -> str:
    """The ratios at which the change, in whole per cent as it is printed, is at most the limit."""
    labels = list(changes)
    met = [label for label in labels if round(changes[label], 2) <= limit]
    if met in ([], labels):
        return "at every ratio" if met else "at no ratio"
    if len(met) == 1:
        return f"at ratio {met[0]}"
    if met == labels[: len(met)]:
        return f"up to ratio {met[-1]}"
    return f"from ratio {met[0]}" if met == labels[-len(met) :] else f"at {', '.join(met)}"


SETTING = (
    f"Averages over {WORKLOADS} traces each; times in seconds. JCT: from a job's arrival to its end. Small jobs have "
    f"at most {SMALL_JOB_GPUS} GPUs. GPUs have {GPU_MEMORY_GIB:g} GiB; jobs share in up to {Setting.largest_split} "
    f"sub-batches; a resumed job needs {Setting.restart_cost:g} s; durations are known. The memory of AdaptDL's "
    "applications is an assumption (torchshare/simulation/applications.py)."
)
FIKIT = (
    "Not here: FIKIT's table (arXiv 2311.10359), ten pairs of models that answer requests. It is measured on a device, "
    "not simulated: benchmarks/fikit.py of the repository."
)
