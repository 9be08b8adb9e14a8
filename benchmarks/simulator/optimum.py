"""Each policy's distance from the best schedule there is, on small generated instances.

The best schedule knows all jobs in advance, suspends and moves jobs at no cost, and shares any GPU between any two.
Within an interval without arrivals and ends, only the time that each configuration runs matters: for a given sequence
of arrivals and ends, the best average completion time is a linear program. Branch and bound goes through the sequences.
The policies run with a restart cost of 0. "replanned" is the best schedule of the jobs that have arrived, computed
again at each arrival: what a policy could do that knows no later jobs. A search that stops early bounds the optimum:
it lies between the least bound of what is not searched and the best schedule found."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchshare import _core
from torchshare.simulation.job_trace import Trace
from torchshare.simulation.ratios import Ratios
from torchshare.simulation.simulate import Case, Setting, simulate

from record import RESULTS, write

POLICIES = _core.cluster_policy_names()
_TOLERANCE = 1e-7  # relative
_ROUNDING = 1e-5  # of the work of a job
_INFEASIBLE = 2  # status of linprog
_MAX_PROGRAMS = 2_000  # per instance
_MAX_REPLAN = 300  # per arrival; then the best schedule so far counts
_LEAST_SHOWN = 20  # instances in a panel
_COLOURS = 10  # of matplotlib's cycle
REPLANNED = "replanned"
SMALL, LARGE = (6, 8), (9, 10)  # least and most jobs of an instance


@dataclass(frozen=True)
class Instance:
    """Jobs in order of arrival; `ratios[i, j]` is the interference ratio of job i beside job j."""

    arrival: NDArray[np.float64]
    work: NDArray[np.float64]  # seconds alone
    needs: NDArray[np.int32]  # GPUs
    ratios: NDArray[np.float64]
    gpus: int

    @property
    def jobs(self) -> int:
        return len(self.work)

    def part(self, jobs: Sequence[int], arrival: NDArray[np.float64], work: NDArray[np.float64]) -> Instance:
        chosen = list(jobs)
        ratios = self.ratios[np.ix_(chosen, chosen)]
        return Instance(arrival[chosen], work[chosen], self.needs[chosen], ratios, self.gpus)


def generated(seed: int, sizes: tuple[int, int] = SMALL) -> Instance:
    """Jobs on two to four GPUs, at a load of 0.7 to 2, with ratios around one from 1 to 1.6."""
    random = np.random.default_rng(seed)
    jobs, gpus = int(random.integers(sizes[0], sizes[1] + 1)), int(random.integers(2, 5))
    work = random.lognormal(7, 1, jobs)
    needs = np.minimum(random.choice([1, 1, 1, 2, 4], jobs), gpus).astype(np.int32)
    window = float((work * needs).sum()) / (gpus * random.uniform(0.7, 2))
    arrival = np.sort(random.uniform(0, window, jobs))
    ratios = np.maximum(1, random.uniform(1, 1.6) + random.uniform(-0.2, 0.2, (jobs, jobs)))
    return Instance(arrival - arrival[0], work, needs, ratios, gpus)


def configurations(instance: Instance) -> list[tuple[frozenset[int], NDArray[np.float64]]]:
    """The sets of jobs that can run at once, each with the speeds of its jobs; for a set, those that no other beats."""
    jobs = range(instance.jobs)
    on_a_gpu = [(), *((job,) for job in jobs), *itertools.combinations(jobs, 2)]
    found: dict[frozenset[int], list[NDArray[np.float64]]] = {}
    for placed in itertools.combinations_with_replacement(on_a_gpu, instance.gpus):
        counts = np.zeros(instance.jobs, dtype=int)
        slow = np.ones(instance.jobs)
        for there in placed:
            for job in there:
                counts[job] += 1
                slow[job] = max(slow[job], *(instance.ratios[job, other] for other in there if other != job), 1)
        if ((counts == 0) | (counts == instance.needs)).all():
            found.setdefault(frozenset(np.flatnonzero(counts).tolist()), []).append(np.where(counts > 0, 1 / slow, 0))
    return [(running, speeds) for running, all_speeds in found.items() for speeds in _unbeaten(all_speeds)]


def _unbeaten(vectors: list[NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    unique = np.unique(np.array(vectors), axis=0)
    for index, vector in enumerate(unique):
        others = np.delete(unique, index, axis=0)
        if not (others >= vector).all(axis=1).any():
            yield vector


class Search:
    """Depth first over the sequences of arrivals and ends."""

    def __init__(
        self, instance: Instance, known: float, later: Sequence[float] | None = None, most: int = _MAX_PROGRAMS
    ) -> None:
        """`known` is a sum of completion times that can be had. `later[k]` is the least one, of the jobs from k on, if
        there are no others: without others, no job ends later."""
        self._instance = instance
        self._configurations = configurations(instance)
        alone = (instance.arrival + instance.work)[::-1].cumsum()[::-1]
        self._later = [*alone.tolist(), 0.0] if later is None else later
        self._most = most
        self.best = known
        self._unsearched = np.inf  # the least bound of the sequences that were not searched
        self.programs = 0
        self._best_ends: list[int | None] = []

    def run(self) -> None:
        """Jobs that arrive at 0 have arrived before the first end."""
        self._extend([None] * (int((self._instance.arrival == 0).sum()) - 1))

    @property
    def is_complete(self) -> bool:
        return self.programs < self._most

    @property
    def bound(self) -> float:
        """The optimum is at least this."""
        return min(self.best, self._unsearched)

    def _extend(self, ends: list[int | None]) -> None:
        """`ends` has a job for each end so far, None for each arrival after the first."""
        arrived = 1 + ends.count(None)
        present = [job for job in range(arrived) if job not in ends]
        following: list[int | None] = [*present] + ([None] if arrived < self._instance.jobs else [])
        bounds = []
        for event in following:
            bound, _ = self._solved([*ends, event])
            if bound < self.best * (1 - _TOLERANCE):
                bounds.append((bound, event))
        for bound, event in sorted(bounds, key=lambda each: each[0]):
            if bound >= self.best * (1 - _TOLERANCE):
                return
            if self.best < np.inf and not self.is_complete:
                self._unsearched = min(self._unsearched, bound)
                return
            if len(ends) + 1 == 2 * self._instance.jobs - 1:
                self.best, self._best_ends = bound, [*ends, event]
            else:
                self._extend([*ends, event])

    def schedule(self) -> list[tuple[float, NDArray[np.float64]]]:
        """The best schedule: times, one after the other, and the speeds of the jobs. Before an end, the configurations
        that are fastest for this job come first."""
        interval, speeds = self._columns(self._best_ends)
        _, seconds = self._solved(self._best_ends)
        found = []
        for index, event in enumerate(self._best_ends):
            parts = [(seconds[k], speeds[k]) for k, at in enumerate(interval) if at == index and seconds[k] > 0]
            found += parts if event is None else sorted(parts, key=lambda part: -part[1][event])
        return found

    def _columns(self, ends: Sequence[int | None]) -> tuple[list[int], list[NDArray[np.float64]]]:
        """The variables of the linear program, times of a configuration in an interval: its index and the speeds."""
        interval, speeds = [], []
        arrived, ended = 1, set()
        for index, event in enumerate(ends):
            present = set(range(arrived)) - ended
            for running, speed in self._configurations:
                if running <= present:
                    speeds.append(speed)
                    interval.append(index)
            arrived += event is None
            ended |= set() if event is None else {event}
        return interval, speeds

    def _solved(self, ends: Sequence[int | None]) -> tuple[float, NDArray[np.float64]]:
        """The least sum of completion times after these events, and the times of the variables. A job that has not
        ended needs its rest at speed 1."""
        instance = self._instance
        self.programs += 1
        interval, speeds = self._columns(ends)
        at = np.array(interval)
        rates = np.array(speeds).T  # by job and variable
        arrived, ended = 1 + list(ends).count(None), [event for event in ends if event is not None]
        waiting = [job for job in range(arrived) if job not in ended]
        # The time of event k is the length of the intervals up to k.
        later_ends = np.array([sum(event is not None for event in ends[index:]) for index in range(len(ends))])
        cost = later_ends[at] + float(len(waiting)) - rates[waiting].sum(axis=0)
        constant = float(instance.work[waiting].sum()) + self._later[arrived]
        equal_rows, equal_values = [rates[job] for job in ended], [instance.work[job] for job in ended]
        upper_rows, upper_values = [rates[job] for job in waiting], [instance.work[job] for job in waiting]
        number = 1
        for index, event in enumerate(ends):
            if event is None:
                equal_rows.append((at <= index).astype(float))
                equal_values.append(instance.arrival[number])
                number += 1
        if number < instance.jobs:
            upper_rows.append(np.ones(len(at)))
            upper_values.append(instance.arrival[number])
        for method, presolve in (("highs", True), ("highs", False), ("highs-ipm", True)):
            found = linprog(
                cost,
                A_ub=coo_array(np.array(upper_rows)) if upper_rows else None,
                b_ub=upper_values or None,
                A_eq=coo_array(np.array(equal_rows)) if equal_rows else None,
                b_eq=equal_values or None,
                method=method,
                options={"presolve": presolve},
            )
            if found.status in (0, _INFEASIBLE):
                break
        else:
            raise RuntimeError(f"linprog: status {found.status} after {ends}: {found.message}")
        return (constant + float(found.fun) if found.status == 0 else np.inf), found.x


def searched(instance: Instance, known: float, most: int = _MAX_PROGRAMS) -> Search:
    """The search of all jobs, after those of the last job, the last two, and so on, which bound it."""
    jobs = instance.jobs
    later = [0.0] * (jobs + 1)
    for first in range(jobs - 1, 0, -1):
        began = float(instance.arrival[first])
        part = instance.part(range(first, jobs), instance.arrival - began, instance.work)
        bounds = [sum_ - began * (jobs - first - number) for number, sum_ in enumerate(later[first:])]
        search = Search(part, np.inf, bounds, most // 8)
        search.run()
        # Also a bound, and maybe a higher one if the search stopped early: the first job runs alone, and the others
        # end as without it.
        alone = later[first + 1] + began + float(instance.work[first])
        later[first] = max(search.bound + began * (jobs - first), alone)
    search = Search(instance, known, later, most)
    search.run()
    return search


def replanned(instance: Instance) -> float:
    """The average completion time, from arrival, if the best schedule is computed at each arrival."""
    left = instance.work.copy()
    ended = np.full(instance.jobs, np.nan)
    for number, now in enumerate(instance.arrival):
        until = instance.arrival[number + 1] if number + 1 < instance.jobs else np.inf
        present = [job for job in range(number + 1) if np.isnan(ended[job])]
        search = Search(instance.part(present, np.zeros(instance.jobs), left), np.inf, most=_MAX_REPLAN)
        search.run()
        for seconds, speeds in search.schedule():
            passed = min(seconds, until - now)
            left[present] -= speeds * passed
            now += passed
            done = [job for job in present if np.isnan(ended[job]) and left[job] <= _ROUNDING * instance.work[job]]
            ended[done] = now
    return float((ended - instance.arrival).mean())


def averages(instance: Instance) -> dict[str, float]:
    """The average completion time from arrival, by policy."""
    trace = Trace(
        source="",
        names=[str(job) for job in range(instance.jobs)],
        arrival=instance.arrival,
        duration=instance.work,
        gpus=instance.needs,
        memory_gib=np.zeros(instance.jobs),
        models=[str(job) for job in range(instance.jobs)],
    )
    setting = Setting(gpus=instance.gpus, gpus_per_node=instance.gpus, restart_cost=0.0)
    ratios = Ratios(trace.models, instance.ratios)
    return {policy: simulate(Case(trace, policy, ratios, setting, "")).figures["avg_jct_s"] for policy in POLICIES}


def measure(seed: int, sizes: tuple[int, int] = SMALL) -> dict[str, Any]:
    """The gaps of an instance: average completion time / the best one - 1, by policy."""
    instance = generated(seed, sizes)
    found = averages(instance)
    found[REPLANNED] = replanned(instance)
    arrivals = float(instance.arrival.sum())
    search = searched(instance, min(found.values()) * instance.jobs + arrivals)
    best = (search.best - arrivals) / instance.jobs
    return {
        "seed": seed,
        "jobs": instance.jobs,
        "gpus": instance.gpus,
        "ratio": round(float(np.median(instance.ratios)), 4),
        "is_complete": search.is_complete,
        "programs": search.programs,
        "best_s": best,
        "bound_s": (search.bound - arrivals) / instance.jobs,
        "gaps": {policy: round(average / best - 1, 6) for policy, average in found.items()},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Per policy: mean and 95th percentile of the gaps, and the share of the instances in which it is the best."""
    found = {}
    for policy in [*POLICIES, REPLANNED]:
        gaps = [run["gaps"][policy] for run in runs]
        found[policy] = {
            "mean": statistics.fmean(gaps),
            "p95": float(np.percentile(gaps, 95)),
            "best": statistics.fmean(gap <= 1e-6 for gap in gaps),
        }
    return found


def bracket(runs: list[dict[str, Any]], policy: str) -> tuple[float, float]:
    """The mean gap of all instances is between these: against the best schedules found, and against the bounds."""
    least = statistics.fmean(run["gaps"][policy] for run in runs)
    most = statistics.fmean((1 + run["gaps"][policy]) * run["best_s"] / run["bound_s"] - 1 for run in runs)
    return least, most


def by_ratio(runs: list[dict[str, Any]], policies: tuple[str, ...]) -> list[dict[str, Any]]:
    """The mean gaps of instances of about equal ratios, a quarter of all each."""
    ordered = sorted(runs, key=lambda run: run["ratio"])
    quarters = [ordered[len(ordered) * part // 4 : len(ordered) * (part + 1) // 4] for part in range(4)]
    return [
        {
            "ratios": [quarter[0]["ratio"], quarter[-1]["ratio"]],
            **{policy: statistics.fmean(run["gaps"][policy] for run in quarter) for policy in policies},
        }
        for quarter in quarters
        if quarter
    ]


def plot(instances: dict[str, list[dict[str, Any]]]) -> Figure:
    """A panel for each size of which enough instances were searched to the end."""
    shown = {title: runs for title, runs in instances.items() if len(runs) >= _LEAST_SHOWN} or instances
    figure = Figure(figsize=(5.5 * len(shown), 4.5), layout="constrained")
    for axes, (title, runs) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        for index, policy in enumerate([*POLICIES, REPLANNED]):
            gaps = np.sort([100 * run["gaps"][policy] for run in runs])
            width, dashes = 2.5 if policy == "pair-srsf" else 1.3, "-" if index < _COLOURS else "--"
            axes.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), dashes, color=f"C{index}", label=policy, lw=width)
        axes.set(
            xlim=(0, 100), xlabel="average JCT above the optimum, %", ylabel="fraction of the instances", title=title
        )
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def show(title: str, runs: list[dict[str, Any]], proven: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints the gaps, and returns them."""
    found = summary(proven) if proven else {}
    print(f"{title}: {len(proven)} of {len(runs)} instances were searched to the end; the others do not count")
    for policy, figures in sorted(found.items(), key=lambda each: each[1]["mean"]):
        print(f"{policy:14}" + "".join(f"  {name} {figures[name]:6.1%}" for name in ("mean", "p95", "best")))
    brackets = {policy: bracket(runs, policy) for policy in [*POLICIES, REPLANNED]}
    for policy, (least, most) in sorted(brackets.items(), key=lambda each: each[1]):
        print(f"{policy:14}  of all instances, mean {least:6.1%} to {most:6.1%}")
    shown = ("sjf-bsbf", "pair-srsf", REPLANNED)
    quarters = by_ratio(proven, shown)
    for quarter in quarters:
        low, high = quarter["ratios"]
        print(f"ratios {low:.2f} to {high:.2f}: " + ", ".join(f"{policy} {quarter[policy]:.1%}" for policy in shown))
    return {"summary": found, "brackets": brackets, "by ratio": quarters, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--small", type=int, default=200, metavar="N", help="instances of 6 to 8 jobs, default: %(default)s"
    )
    parser.add_argument(
        "--large", type=int, default=40, metavar="N", help="instances of 9 or 10 jobs, default: %(default)s"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for optimum.json and .png")
    arguments = parser.parse_args()
    kinds = {"6 to 8 jobs": (arguments.small, SMALL), "9 or 10 jobs": (arguments.large, LARGE)}
    kinds = {title: each for title, each in kinds.items() if each[0] > 0}
    runs = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for title, (count, sizes) in kinds.items():
            seeds = range(arguments.first_seed, arguments.first_seed + count)
            runs[title] = list(pool.map(measure, seeds, itertools.repeat(sizes)))
    proven = {title: [run for run in all_runs if run["is_complete"]] for title, all_runs in runs.items()}
    write("optimum", {title: show(title, runs[title], proven[title]) for title in kinds}, arguments.out)
    plot(proven).savefig(arguments.out / "optimum.png", dpi=80)


if __name__ == "__main__":
    main()
