"""Compares compiled steps with eager ones, in two processes, two threads or torchshare, interleaved.

Each mode of each repetition is a fresh process (or two). Both jobs are built, then run through the same window of time.
Rates are steps per second over those of the same kind in eager alone, in the same repetition: an aggregate of 2.00 is
two jobs on two cores as fast as eager alone. Compiled jobs train with `job.fit`, in chunks of about 20 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchshare

from jobs import Training
from pairs import WindowMeter, collect, launch
from record import RESULTS, interleaved, shown, spread, steady_malloc, write

PAIRS = {
    "tiny+tiny": ("tiny", "tiny"),
    "tiny+conv": ("tiny", "conv"),
    "lstm+mlp": ("lstm", "mlp"),
    "conv+conv": ("conv", "conv"),
}
WHERE = ["two processes", "two threads", "torchshare"]
MODES = [f"{how}, {where}" for how in ("eager", "compiled") for where in WHERE]
CHUNK_S = 0.02
Run = Callable[[WindowMeter], None]


def eager(kind: str, job: torchshare.Job | None) -> Run:
    training = Training(kind)
    return lambda meter: training.run(meter, job)


def compiled_step(kind: str, job: torchshare.Job) -> tuple[Training, torchshare.CompiledStep]:
    training = Training(kind)
    step = job.compiled_step(training.model, training.loss, training.optimizer, next(training.batches))
    assert step.fallback is None, step.fallback
    return training, step


def compiled(kind: str, job: torchshare.Job) -> Run:
    training, step = compiled_step(kind, job)
    job.fit(step, training.batches, steps=3)
    begin = time.monotonic()
    job.fit(step, training.batches, steps=8)
    chunk = max(1, int(8 * CHUNK_S / (time.monotonic() - begin)))

    def run(meter: WindowMeter) -> None:
        while True:
            job.fit(step, training.batches, steps=chunk)
            if not meter.step_done(chunk):
                return

    return run


def compiled_in_a_thread(kind: str) -> Run:
    """The same compiled step in a plain thread, called for each batch, without torchshare between the jobs."""

    def build(job: torchshare.Job) -> Any:
        training, step = compiled_step(kind, job)
        job.fit(step, training.batches, steps=3)
        return step._bound, training

    with torchshare.Runtime() as runtime:
        runtime.submit(build, name=kind, priority="primary", threads=1)
        step, training = runtime.wait()[kind].value

    def run(meter: WindowMeter) -> None:
        for batch in training.batches:
            step.run(None, [(list(batch), 1.0)])
            if not meter.step_done():
                return

    return run


def work(kinds: list[str], mode: str) -> list[dict[str, float]]:
    """Runs one or two jobs in this process, in the window given by the parent; returns their figures."""
    warnings.simplefilter("ignore")
    how, where = mode.split(", ")
    built, go = threading.Barrier(len(kinds) + 1), threading.Barrier(len(kinds) + 1)
    meters: list[WindowMeter] = []

    def wait_and_run(index: int, run: Run) -> None:
        torch.set_num_threads(1)  # of this thread
        built.wait()
        go.wait()
        run(meters[index])

    def in_thread(index: int, kind: str) -> None:
        torch.set_num_threads(1)
        wait_and_run(index, eager(kind, None))

    def coordinate() -> None:
        built.wait()
        print("ready", flush=True)
        start, end = json.loads(input())
        meters.extend(WindowMeter(start, end) for _ in kinds)
        go.wait()

    in_threads = where == "two threads" or (how == "eager" and where == "two processes")
    if in_threads:
        if how == "eager":
            bodies = [(in_thread, (index, kind)) for index, kind in enumerate(kinds)]
        else:
            bodies = [(wait_and_run, (index, compiled_in_a_thread(kind))) for index, kind in enumerate(kinds)]
        threads = [threading.Thread(target=body, args=given) for body, given in bodies]
        for thread in threads:
            thread.start()
        coordinate()
        for thread in threads:
            thread.join()
    else:
        build = compiled if how == "compiled" else eager
        with torchshare.Runtime() as runtime:
            for index, kind in enumerate(kinds):
                runtime.submit(
                    lambda job, index=index, kind=kind: wait_and_run(index, build(kind, job)),
                    name=f"{index} {kind}", priority="secondary" if index else "primary", threads=1,
                )  # fmt: skip
            runtime.start()
            coordinate()
            runtime.wait()
    return [meter.figures() for meter in meters]


def measure(kinds: list[str], mode: str, window: float) -> list[float]:
    """Steps per second of each job in that mode."""
    groups = [[kind] for kind in kinds] if mode.endswith("two processes") else [kinds]
    processes = [launch(__file__, [group, mode], 2) for group in groups]
    return [figures["rate"] for figures in collect(processes, window)]


def build_seconds(kind: str) -> float:
    """Seconds to trace, compile and load a compiled step of this kind."""
    warnings.simplefilter("ignore")
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: compiled_step(kind, job)[1].compile_s, name=kind, priority="primary", threads=1)
        seconds: float = runtime.wait()[kind].value
    return seconds


def building(kinds: list[str]) -> dict[str, dict[str, float]]:
    """Seconds to make each kind's step with an empty cache, and in another process from that cache."""
    found = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            times = []
            for _ in range(2):
                process = launch(__file__, [[kind], "build"], 2)
                times.append(json.loads(process.communicate()[0]))
            found[kind] = {"cold_s": times[0], "cached_s": times[1]}
            del os.environ["XDG_CACHE_HOME"]
    return found


def repeat(pair: str, window: float) -> dict[str, Any]:
    """One repetition of a pair: each job alone in eager and compiled, then every mode."""
    kinds = PAIRS[pair]
    alone = {
        how: {kind: measure([kind], f"{how}, two processes", window)[0] for kind in dict.fromkeys(kinds)}
        for how in ("eager", "compiled")
    }
    runs = {}
    for mode in MODES:
        rates = measure(list(kinds), mode, window)
        runs[mode] = [rate / alone["eager"][kind] for kind, rate in zip(kinds, rates, strict=True)]
    return {"alone": alone, "modes": runs}


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures per mode over the repetitions, and the speedup of compiled steps for each kind alone."""
    modes = {}
    for mode in MODES:
        rates = [r["modes"][mode] for r in repetitions]
        base = [sum(r["modes"][mode.split(", ")[0] + ", two processes"]) for r in repetitions]
        shared = [sum(r["modes"]["eager, torchshare"]) for r in repetitions]
        modes[mode] = {
            "primary": spread([a for a, _ in rates]),
            "secondary": spread([b for _, b in rates]),
            "aggregate": spread([a + b for a, b in rates]),
            "vs_two_processes": spread([sum(x) / b for x, b in zip(rates, base, strict=True)]),
            "vs_eager_sharing": spread([sum(x) / b for x, b in zip(rates, shared, strict=True)]),
        }
    kinds = repetitions[0]["alone"]["eager"]
    alone = {
        kind: spread([r["alone"]["compiled"][kind] / r["alone"]["eager"][kind] for r in repetitions]) for kind in kinds
    }
    return {"modes": modes, "alone": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steady_malloc()
    if arguments.work:
        kinds, mode = json.loads(arguments.work)
        print(json.dumps(build_seconds(kinds[0]) if mode == "build" else work(kinds, mode)))
        return
    kinds = list(dict.fromkeys(kind for pair in arguments.pairs for kind in PAIRS[pair]))
    seconds = building(kinds)
    raw = interleaved(arguments.pairs, arguments.repetitions, lambda pair: repeat(pair, arguments.window))
    summaries = {pair: summary(repetitions) for pair, repetitions in raw.items()}
    write("compiled", {"summary": {"pairs": summaries, "building": seconds}, "repetitions": raw}, arguments.output)
    for kind, times in seconds.items():
        print(f"{kind}: compiled in {times['cold_s']:.1f} s, from the cache in {times['cached_s']:.2f} s")
    for pair, figures in summaries.items():
        for kind, ratio in figures["alone"].items():
            print(f"{pair:12}{kind} alone, compiled against eager: {shown(ratio)}")
        for mode, rates in figures["modes"].items():
            print(f"{pair:12}{mode:24}", "  ".join(f"{name} {shown(figure)}" for name, figure in rates.items()))


if __name__ == "__main__":
    main()
