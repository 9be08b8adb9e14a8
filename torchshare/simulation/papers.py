"""The tables of SJF-BSBF (arXiv 2407.13088), simulated, beside what the paper says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchshare.simulation.adaptdl import WORKLOADS, read_packaged
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
    """One table. Rows are those of `summarize`, with the column `varied` if the table is a sweep."""

    name: str
    title: str
    note: str
    points: list[Point]
    varied: str = ""
    rows: list[Row] = field(default_factory=list)

    def row(self, policy: str, label: str) -> Row:
        return next(row for row in self.rows if (row["policy"], row.get(self.varied, label)) == (policy, label))

    def figures(self) -> list[Row]:
        """The rows without spreads, rounded."""
        return [
            {
                name: round(value, 4) if isinstance(value, float) else value
                for name, value in row.items()
                if not name.endswith("_spread")
            }
            for row in self.rows
        ]

    def against(self, policy: str, baseline: str) -> dict[str, float]:
        """Average completion time / that of the baseline - 1, by label."""
        return {
            point.label: float(
                self.row(policy, point.label)["avg_jct_s"] / self.row(baseline, point.label)["avg_jct_s"] - 1
            )
            for point in self.points
        }

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
            [policy, *(f"{self.row(policy, label)['avg_jct_s']:,.0f}" for label in labels)] for policy in POLICIES
        ]
        for policy, baseline in (("sjf-bsbf", "tiresias"), ("sjf-bsbf", "sjf-ffs"), ("pair-srsf", "sjf-bsbf")):
            against = self.against(policy, baseline)
            lines.append([f"{policy} vs {baseline}", *(_change(against[label]) for label in labels)])
        for policy in POLICIES[3:]:
            shared = [f"{self.row(policy, label)['shared_fraction']:.0%}" for label in labels]
            lines.append([f"{policy}, time shared", *shared])
        return lines


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
    "known": "AdaptDL's workloads. Its authors' own simulator has averages of 6,182 s with Tiresias, 7,235 s with "
    "Optimus and 3,685 s with Pollux, which is not comparable: it changes the GPUs and batch sizes of jobs.",
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
    return tables


def simulate_parts(
    tables: Sequence[Part], progress: Callable[[int, int], object] = lambda case, ended: None
) -> list[Part]:
    """The tables with their rows. Calls `progress(index of a case, number of its ended jobs)`."""
    points = [point for part in tables for point in part.points]
    outcomes = iter(simulate_all([case for point in points for case in point.cases], progress))
    return [
        replace(
            part,
            rows=[
                {**row, **({part.varied: point.label} if part.varied else {})}
                for point in part.points
                for row in summarize(list(itertools.islice(outcomes, len(point.cases))))
            ],
        )
        for part in tables
    ]


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
