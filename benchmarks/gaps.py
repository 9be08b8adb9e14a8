"""Compares gate policies with the operating system's means at filling the primary's gaps, modes interleaved.

Primaries: two models that answer requests (Poisson arrivals at a share of what they can serve, batches of 1 to 8), an
input-bound and a compute-bound training. The secondary is a training that wants both cores. All have two threads.
Every mode of a repetition is a fresh process (or two), with the same arrivals. A request's latency counts from its
arrival; of a training, the time of a step counts. Rates are of steps (or requests) in a window of time.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import torchshare

from jobs import StepMeter, conv_net, train
from pairs import collect, launch
from record import RESULTS, interleaved, shown, spread, steady_malloc, write

THREADS = 2
SECONDARY = "conv"
LARGEST_REQUEST = 8
SEQUENCE = 64
PRIMARIES: dict[str, tuple[str, float]] = {  # kind, load
    "cnn, 30 % load": ("cnn", 0.3),
    "cnn, 60 % load": ("cnn", 0.6),
    "transformer, 30 % load": ("transformer", 0.3),
    "transformer, 60 % load": ("transformer", 0.6),
    "input-bound training": ("input_bound", 0.0),
    "compute-bound training": ("conv", 0.0),
}
MODES = {  # options of the runtime; for others, how the secondary runs
    "two processes": {},
    "two processes, nice 19": {"nice": 19},
    "two processes, SCHED_IDLE": {"idle": True},
    "two threads": {},
    "torchshare": {"policy": "priority"},
    "strict": {"policy": "strict", "device_priority": "none"},
    "best fit": {"policy": "best_fit", "device_priority": "none"},
    "best fit + SCHED_IDLE": {"policy": "best_fit"},
}
PLAIN = "two processes"
WITHOUT_RUNTIME = ("alone", "two threads")


class Transformer(nn.Module):
    """Two encoder layers over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.classify(self.encode(x).mean(1))
        return answer


Served = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]  # the model, rows of the largest request
SERVED: dict[str, Served] = {
    "cnn": (lambda: conv_net(32), lambda: torch.randn(LARGEST_REQUEST, 3, 32, 32)),
    "transformer": (Transformer, lambda: torch.randn(LARGEST_REQUEST, SEQUENCE, 128)),
}


class Recorder:
    """The times of requests or steps that ended in a window, in seconds."""

    def __init__(self, start: float, end: float) -> None:
        self._start, self._end = start, end
        self._last: float | None = None
        self.times: list[float] = []

    def step_done(self) -> bool:
        """Called after a step of a training; records the time since the previous one. False ends the training."""
        now = time.monotonic()
        goes_on = self.answered(now if self._last is None else self._last, now)
        self._last = now
        return goes_on

    def answered(self, arrival: float, now: float) -> bool:
        if self._start <= now < self._end and now > arrival:
            self.times.append(now - arrival)
        return now < self._end

    def figures(self) -> dict[str, Any]:
        return {"rate": len(self.times) / (self._end - self._start), "times": self.times}


Request = tuple[float, torch.Tensor]


def requests(rows: torch.Tensor, per_second: float, start: float) -> Iterator[Request]:
    """Yields arrival and rows of each request, not before its arrival: the first of `rows`. Deterministic. A rate of 0:
    no waiting."""
    random = np.random.default_rng(0)
    arrival = start
    while True:
        arrival = arrival + random.exponential(1 / per_second) if per_second else time.monotonic()
        count = int(random.integers(1, len(rows) + 1))
        wait = arrival - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        yield arrival, rows[:count]


def serve(
    kind: str, recorder: Recorder, per_second: float, start: float, device: str, job: torchshare.Job | None = None
) -> None:
    """Answers requests until the window ends; with `job`, those of `job.requests`. An answer is on the CPU."""
    torch.set_num_threads(THREADS)
    model, largest = served(kind, device)
    arriving = requests(largest, per_second, start)
    with torch.no_grad():
        for _ in range(5):
            model(largest.to(device)).cpu()
        for request in arriving if job is None else job.requests(arriving):
            arrival, rows = request if job is None else request.data
            answer = model(rows.to(device)).cpu()
            if job is not None:
                request.answer(answer)
            if not recorder.answered(arrival, time.monotonic()):
                return


def served(kind: str, device: str) -> tuple[nn.Module, torch.Tensor]:
    """The model on the device, and the rows of the largest request on the CPU."""
    make, example = SERVED[kind]
    with torch.device(device):
        return make().eval(), example().cpu()


def warm_up(kinds: list[str], mode: str, device: str) -> None:
    """Trains and answers a little as the mode will. The first step and the first job import many modules; on a GPU, the
    first request of a size loads kernels."""

    def once(_job: torchshare.Job | None = None) -> None:
        torch.set_num_threads(THREADS)
        for kind in kinds:
            if kind not in SERVED:
                train(kind, StepMeter(3), threads=THREADS)
                continue
            model, largest = served(kind, device)
            with torch.no_grad():
                for count in range(1, len(largest) + 1):
                    model(largest[:count].to(device)).cpu()

    if mode in WITHOUT_RUNTIME:
        once()
    else:
        with torchshare.Runtime(device=device, **MODES[mode]) as runtime:
            runtime.submit(once, name="warm-up", threads=THREADS)
            runtime.wait()


def body(kind: str, recorder: Recorder, per_second: float, start: float, device: str) -> Callable[..., None]:
    if kind in SERVED:
        return lambda job=None: serve(kind, recorder, per_second, start, device, job)
    return lambda job=None: train(kind, recorder, job, THREADS)


def on_own_stream(run: Callable[[], None], device: str) -> None:
    """As jobs run on a GPU. On the default stream, one thread would wait for the kernels of the other."""
    with torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None):
        run()


def work(
    kinds: list[str], mode: str, rates: list[float], device: str = "cpu", timed: bool = False
) -> list[dict[str, Any]]:
    """Runs one or two jobs in this process, in the window given by the parent; returns their figures. `rates`: of the
    requests of each job, per second. `timed`: each op is timed."""
    warnings.simplefilter("ignore")
    warm_up(kinds, mode, device)
    print("ready", flush=True)
    start, end = json.loads(input())
    recorders = [Recorder(start, end) for _ in kinds]
    bodies = [body(*each, start - 1, device) for each in zip(kinds, recorders, rates, strict=True)]
    report: dict[str, Any] = {}
    if mode in WITHOUT_RUNTIME:
        threads = [threading.Thread(target=on_own_stream, args=(each, device)) for each in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        with torchshare.Runtime(device=device, **MODES[mode]) as runtime:
            for index, each in enumerate(bodies):
                priority = "secondary" if index else "primary"
                runtime.submit(each, name=f"{index}", priority=priority, threads=THREADS, record_ops=timed)
            runtime.wait()
            report = next(map(asdict, runtime.gap_report()), {})
    return [{**recorder.figures(), "report": report} for recorder in recorders]


def run(kinds: list[str], mode: str, per_second: float, window: float, cores: int) -> list[dict[str, Any]]:
    if mode.startswith("two processes"):
        options = ({}, MODES[mode])
        processes = [
            launch(__file__, [[kind], "alone", [per_second]], cores, **each)
            for kind, each in zip(kinds, options, strict=True)
        ]
    else:
        processes = [launch(__file__, [kinds, mode, [per_second] * len(kinds)], cores)]
    return collect(processes, window)


def repeat(primary: str, window: float, cores: int) -> dict[str, Any]:
    """One repetition: each job alone, then every mode."""
    kind, load = PRIMARIES[primary]
    service = float(np.mean(run([kind], "alone", 0, window / 4, cores)[0]["times"])) if load else 0.0
    per_second = load / service if load else 0.0
    alone = [run([each], "alone", per_second, window, cores)[0] for each in (kind, SECONDARY)]
    modes = {mode: run([kind, SECONDARY], mode, per_second, window, cores) for mode in MODES}
    return {
        "service_s": service,
        "alone": [condensed(job) for job in alone],
        "modes": {mode: [condensed(job) for job in jobs] for mode, jobs in modes.items()},
    }


def condensed(job: dict[str, Any]) -> dict[str, Any]:
    """Rate, mean and percentiles of the times; None without times."""
    times = job["times"]
    p50, p95, p99 = np.quantile(times, [0.5, 0.95, 0.99]).tolist() if times else (None,) * 3
    mean = float(np.mean(times)) if times else None
    return {"rate": job["rate"], "mean": mean, "p50": p50, "p95": p95, "p99": p99, "report": job.get("report", {})}


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per mode: the primary relative to alone, the secondary relative to alone and to plain sharing."""
    found: dict[str, Any] = {}
    for mode in repetitions[0]["modes"]:
        figures: dict[str, list[float]] = {}
        for repetition in repetitions:
            primary, secondary = repetition["modes"][mode]
            alone, secondary_alone = repetition["alone"]
            plain = repetition["modes"][PLAIN]
            values = {name: over(primary[name], alone[name]) for name in ("mean", "p50", "p95", "p99")}
            values["mean_vs_plain"] = over(plain[0]["mean"], primary["mean"])
            values["secondary"] = over(secondary["rate"], secondary_alone["rate"])
            values["secondary_vs_plain"] = over(secondary["rate"], plain[1]["rate"])
            values["aggregate"] = over(primary["rate"], alone["rate"]) + values["secondary"]
            for name, value in values.items():
                figures.setdefault(name, []).append(value)
        found[mode] = {name: spread(values) for name, values in figures.items()}
    return found


def over(value: float | None, base: float | None) -> float:
    """A job without times in the window is infinitely slow."""
    return value / base if value is not None and base else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--primaries", nargs="+", choices=PRIMARIES, default=list(PRIMARIES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--window", type=float, default=8.0, help="seconds")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steady_malloc()
    if arguments.work:
        print(json.dumps(work(*json.loads(arguments.work))))
        return
    raw = interleaved(
        arguments.primaries,
        arguments.repetitions,
        lambda primary: repeat(primary, arguments.window, arguments.cores),
    )
    summaries = {primary: summary(repetitions) for primary, repetitions in raw.items()}
    write("gaps", {"summary": summaries, "repetitions": raw}, arguments.output)
    for primary, modes in summaries.items():
        for mode, figures in modes.items():
            print(f"{primary:24}{mode:27}", "  ".join(f"{name} {shown(figure)}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
