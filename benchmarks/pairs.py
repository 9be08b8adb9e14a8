"""Measures pairs of jobs in several ways to run two jobs on one machine, interleaved.

Each mode of each repetition is a fresh process (or two). Both jobs warm up, then run through the same window of time,
so that neither runs alone at the end; a job's rate is the number of steps that ended in the window.
Rates are divided by the job's rate alone in the same repetition: 1.00 is as fast as alone, and an aggregate of 1.00 is
what running one after the other gives. glibc's malloc is tuned to keep large blocks (`STEADY_MALLOC`), except in
torchshare, which keeps them itself, and in "two processes, as users have them".
The input-bound pair runs on ONE core, so that its primary leaves that core idle while it waits; "of idle time" is the
secondary's rate over the share of the core that the primary alone leaves idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from record import STEADY_MALLOC, interleaved, parser, shown, spread, steady_malloc, write

if TYPE_CHECKING:
    import torchshare

    from jobs import Meter

PAIRS = {
    "conv+conv": ("conv", "conv", 2),
    "conv+tiny": ("conv", "tiny", 2),
    "tiny+tiny": ("tiny", "tiny", 2),
    "input_bound+conv": ("input_bound", "conv", 1),
}  # primary, secondary, cores
MODES = [
    *("two processes", "two processes, as users have them", "two processes, nice 19"),
    *("two threads", "torchshare", "torchshare strict"),
]
WARM_UP_S = 1.5  # from when every process has trained a step to the window
LIMIT_S = 120.0  # from the end of a window until a process is given up


class WindowMeter:
    """Counts steps between two instants of time.monotonic()."""

    def __init__(self, start: float, end: float) -> None:
        self._start, self._end = start, end
        self._steps = 0
        self._cpu: list[float] = []

    def step_done(self, steps: int = 1) -> bool:
        now = time.monotonic()
        if self._start <= now < self._end:
            self._steps += steps
            self._cpu.append(time.thread_time())
        return now < self._end

    def figures(self) -> dict[str, float]:
        """Steps per second, and the fraction of the window that the thread ran on a core. Zeros for a starved job."""
        window = self._end - self._start
        on_core = self._cpu[-1] - self._cpu[0] if self._cpu else 0.0
        return {"rate": self._steps / window, "cpu": on_core / window}


_Meter = TypeVar("_Meter", bound="Meter")
Trainer = Callable[[list[str], "Sequence[Meter]"], None]  # trains a job of each kind until its meter ends it


def in_window_of_parent(kinds: list[str], meter: Callable[[float, float], _Meter], run: Trainer) -> list[_Meter]:
    """Warms up, waits for the parent's window, and trains through it. Returns each job's meter of the window.

    The warm-up runs the jobs as they are measured: the first step imports many modules of torch, and the first runtime
    takes seconds to open on a loaded machine."""
    from jobs import StepMeter

    warnings.simplefilter("ignore")
    run(kinds, [StepMeter(3) for _ in kinds])
    print("ready", flush=True)
    start, end = json.loads(input())
    meters = [meter(start, end) for _ in kinds]
    run(kinds, meters)
    return meters


def in_threads(kinds: list[str], meters: Sequence[Meter]) -> None:
    """Trains the jobs, each in a thread."""
    from jobs import train

    threads = [threading.Thread(target=train, args=pair) for pair in zip(kinds, meters, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_torchshare(of_runtime: torchshare.RuntimeOptions, **options: Any) -> Trainer:
    """Trains the jobs in a runtime; `options` are those of every job."""
    import torchshare

    from jobs import train

    def run(kinds: list[str], meters: Sequence[Meter]) -> None:
        with torchshare.Runtime(**of_runtime) as runtime:
            for index, (kind, meter) in enumerate(zip(kinds, meters, strict=True)):
                priority = "secondary" if index else "primary"
                runtime.submit(
                    lambda job, kind=kind, meter=meter: train(kind, meter, job),
                    name=f"{index} {kind}", priority=priority, threads=1, **options,
                )  # fmt: skip
            runtime.wait()

    return run


def work(kinds: list[str], mode: str) -> list[dict[str, float]]:
    """Runs one or two jobs in this process, in the window given by the parent; returns their figures."""
    run = in_threads
    if mode.startswith("torchshare"):
        run = in_torchshare({"policy": "strict" if mode.endswith("strict") else "priority"})
    return [meter.figures() for meter in in_window_of_parent(kinds, WindowMeter, run)]


def launch(
    script: str,
    what: Any,
    cores: int,
    nice: int = 0,
    idle: bool = False,
    environment: dict[str, str] | None = None,
    python: Sequence[str] = (sys.executable,),
) -> subprocess.Popen[str]:
    """Starts a process that runs `script --work WHAT` on a number of cores, with a niceness or as SCHED_IDLE."""

    def prepare() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        os.nice(nice)
        if idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    return subprocess.Popen(
        [*python, script, "--work", json.dumps(what)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=prepare,
    )


def measure(
    kinds: list[str], mode: str, window: float, cores: int, python: Sequence[str] = (sys.executable,)
) -> list[dict[str, float]]:
    """The figures of each job in that mode. RuntimeError: the first ended no step in the window."""
    untuned = mode.startswith("torchshare") or mode.endswith("as users have them")
    environment = {name: value for name, value in os.environ.items() if name not in STEADY_MALLOC or not untuned}
    if mode.startswith("two processes"):
        nices = (0, 19 if mode.endswith("19") else 0)
        processes = [
            launch(__file__, [[kind], "alone"], cores, nice, environment=environment, python=python)
            for kind, nice in zip(kinds, nices, strict=True)
        ]
    else:
        processes = [launch(__file__, [kinds, mode], cores, environment=environment, python=python)]
    figures = collect(processes, window)
    if not figures[0]["rate"]:
        raise RuntimeError(f"{'+'.join(kinds)}, {mode}: {kinds[0]} ended no step in {window} s; give a longer --window")
    return figures


def collect(processes: list[subprocess.Popen[str]], window: float) -> list[Any]:
    """Waits until all are ready, and returns what they measure in a window."""
    with ended(processes):
        wait_until_ready(processes)
        return in_window(processes, window)


@contextlib.contextmanager
def ended(processes: Iterable[subprocess.Popen[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Kills at the end those that still run."""
    all_of_them = list(processes)
    try:
        yield all_of_them
    finally:
        for process in all_of_them:
            process.kill()


def wait_until_ready(processes: list[subprocess.Popen[str]]) -> None:
    """Until each has warmed up. RuntimeError: one has ended."""
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a measuring process has not got ready; its status is {process.poll()}")


def in_window(processes: list[subprocess.Popen[str]], window: float) -> list[Any]:
    """Tells the processes the window, in seconds from now, and joins the lists that they print. RuntimeError: one has
    failed. subprocess.TimeoutExpired: one hangs."""
    start = time.monotonic() + WARM_UP_S
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps([start, start + window]) + "\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=window + LIMIT_S)[0] for process in processes]
    for process in processes:
        if process.returncode != 0:
            raise RuntimeError(f"a measuring process has ended with status {process.returncode}")
    return [figures for output in outputs for figures in json.loads(output)]


def repeat(pair: str, modes: list[str], window: float) -> dict[str, Any]:
    """One repetition of a pair: each job alone, then every mode."""
    *kinds, cores = PAIRS[pair]
    alone = {kind: measure([kind], "alone", window, cores)[0] for kind in dict.fromkeys(kinds)}
    runs = {}
    for mode in modes:
        together = measure(kinds, mode, window, cores)
        runs[mode] = [job["rate"] / alone[kind]["rate"] for kind, job in zip(kinds, together, strict=True)]
    return {"alone": alone, "modes": runs}


def makespan(first: float, second: float) -> float:
    """Time to finish equal work of both jobs, relative to one after the other; computed from the relative rates."""
    faster, slower = max(first, second), min(first, second)
    together = 1.0 / faster  # until the faster job has done its work; then the other continues alone
    return (together + max(0.0, 1.0 - slower * together)) / 2.0


def summary(pair: str, repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures per mode over the repetitions."""
    found: dict[str, Any] = {}
    for mode in repetitions[0]["modes"]:
        rates = [r["modes"][mode] for r in repetitions]
        figures = {
            "primary_slowdown": spread([1 / a for a, _ in rates]),
            "secondary_rate": spread([b for _, b in rates]),
            "aggregate": spread([a + b for a, b in rates]),
            "makespan_computed": spread([makespan(a, b) for a, b in rates]),
        }
        if "two processes" in repetitions[0]["modes"]:
            base = [sum(r["modes"]["two processes"]) for r in repetitions]
            figures["vs_two_processes"] = spread([sum(x) / b for x, b in zip(rates, base, strict=True)])
        if PAIRS[pair][2] == 1:
            idle = [1 - r["alone"][PAIRS[pair][0]]["cpu"] for r in repetitions]
            figures["share_of_idle"] = spread([b / i for (_, b), i in zip(rates, idle, strict=True)])
        found[mode] = figures
    return found


def main() -> None:
    options = parser(__doc__, repetitions=3, window=4.0)
    options.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    options.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    arguments = options.parse_args()
    if arguments.work:
        print(json.dumps(work(*json.loads(arguments.work))))
        return
    steady_malloc()
    raw = interleaved(
        arguments.pairs, arguments.repetitions, lambda pair: repeat(pair, arguments.modes, arguments.window)
    )
    summaries = {pair: summary(pair, repetitions) for pair, repetitions in raw.items()}
    write("pairs", {"summary": summaries, "repetitions": raw}, arguments.output)
    for pair, modes in summaries.items():
        for mode, figures in modes.items():
            print(f"{pair:18}{mode:24}", "  ".join(f"{name} {shown(figure)}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
