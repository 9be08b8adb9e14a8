"""Compares ways to run a model that answers requests, alone and beside a training of tiny ops (the GIL).

The same requests (Poisson arrivals, batches of 1 to 8) are answered one after another by the model in eager, by
AOTInductor's own Python runner, and by `job.compiled`. Each is a job of a runtime, with one thread; the training is a
lower job. Every mode of a repetition is a fresh process. Latency counts from a request's arrival, service from when the
loop takes it. Slowdowns are against the same way alone, in the same repetition. "service reported / own" is the median
that the job reports (`Result.requests`) over that of this program's own clock for all requests, which stops when the
answer is computed, as for "service", or when `request.answer` has returned ("given"). The report rounds up, by
2 % at most.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import torchshare

from gaps import LARGEST_REQUEST, Recorder, requests
from jobs import KINDS, StepMeter, train
from pairs import WindowMeter, collect, launch
from record import interleaved, parser, shown, spread, steady_malloc, write

HOW = ["eager", "runner", "compiled"]
QUANTILES = {"p50": 50, "p99": 99}
WARM_UP = 20
Infer = Callable[[torch.Tensor], Any]


def model_of(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    make, shape, _ = KINDS[kind]
    return make().eval(), shape


def package(kind: str, path: str) -> None:
    """Compiles the model for AOTInductor's own runner."""
    model, shape = model_of(kind)
    rows = torch.export.Dim("rows", min=1)
    exported = torch.export.export(model, (torch.randn(LARGEST_REQUEST, *shape),), dynamic_shapes=({0: rows},))
    torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs={"cpp.threads": 1})


def infer_of(job: torchshare.Job, how: str, model: nn.Module, example: torch.Tensor, path: str) -> Infer:
    if how == "eager":
        return torch.no_grad()(model.forward)
    if how == "runner":
        return torch.no_grad()(torch._inductor.aoti_load_package(path))
    infer = job.compiled(model, example)
    assert infer.fallback is None, infer.fallback
    return infer


def work(kind: str, how: str, beside: bool, per_second: float, path: str) -> list[dict[str, Any]]:
    """Answers requests in the window given by the parent; returns the times and the training's rate."""
    warnings.simplefilter("ignore")
    meters: list[Any] = []
    own: dict[str, list[float]] = {"computed": [], "given": []}  # of all requests, as those that the job reports

    def serve(job: torchshare.Job) -> None:
        model, shape = model_of(kind)
        infer = infer_of(job, how, model, torch.randn(LARGEST_REQUEST, *shape), path)
        for _ in range(WARM_UP):
            infer(torch.randn(LARGEST_REQUEST, *shape))
        print("ready", flush=True)
        start, end = json.loads(input())
        latency, service = Recorder(start, end), Recorder(start, end)
        meters[:] = [latency, service, WindowMeter(start, end)]
        arriving = requests(torch.randn(LARGEST_REQUEST, *shape), per_second, start - 0.5)
        for request in job.requests(arriving):
            begin = time.monotonic()
            arrival, rows = request.data
            answer = infer(rows)
            now = time.monotonic()
            request.answer(answer)
            service.answered(begin, now)
            own["computed"].append(now - begin)
            own["given"].append(time.monotonic() - begin)
            if not latency.answered(arrival, now):
                return

    def contend(job: torchshare.Job) -> None:
        while not meters:
            time.sleep(0.01)
        train("tiny", meters[2], job)

    train("tiny", StepMeter(3))  # warms up torch: the first step imports many modules
    with torchshare.Runtime("cpu") as runtime:
        server = runtime.submit(serve, name="server", priority="primary", threads=1)
        if beside:
            runtime.submit(contend, name="tiny", threads=1)
        runtime.wait()
    latency, service, training = meters
    reported = server.result.requests
    assert reported is not None
    over_own = {until: reported.service.p50 / float(np.median(times)) for until, times in own.items()}
    figures = {"latency": latency.times, "service": service.times, "reported_over_own": over_own}
    return [{**figures, **training.figures()}]


def repeat(kind: str, window: float, per_second: float, path: str) -> dict[str, Any]:
    """One repetition: each way alone and beside the training."""
    runs: dict[str, Any] = {}
    for how in HOW:
        for beside in (False, True):
            what = [kind, how, beside, per_second, path]
            runs[f"{how}, {'beside' if beside else 'alone'}"] = collect([launch(__file__, what, 2)], window)[0]
    return runs


def quantiles(times: list[float]) -> dict[str, float]:
    return {name: float(np.percentile(times, percent)) for name, percent in QUANTILES.items()}


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per way: quantiles in ms alone and beside the training, the slowdown, against eager beside it, the training's
    steps per second, reported service times against the program's own."""
    found: dict[str, Any] = {}
    for how in HOW:
        found[how] = {
            "training": spread([each[f"{how}, beside"]["rate"] for each in repetitions]),
            "service reported / own": {
                f"{until}, {mode}": spread([each[f"{how}, {mode}"]["reported_over_own"][until] for each in repetitions])
                for until in ("computed", "given")
                for mode in ("alone", "beside")
            },
        }
        for what in ("latency", "service"):
            for name in QUANTILES:
                alone, beside, eager = (
                    [quantiles(each[mode][what])[name] for each in repetitions]
                    for mode in (f"{how}, alone", f"{how}, beside", "eager, beside")
                )
                found[how][f"{what} {name}"] = {
                    "alone_ms": spread([1e3 * value for value in alone]),
                    "beside_ms": spread([1e3 * value for value in beside]),
                    "slowdown": spread([b / a for a, b in zip(alone, beside, strict=True)]),
                    "faster_than_eager": spread([e / b for e, b in zip(eager, beside, strict=True)]),
                }
    return found


def main() -> None:
    options = parser(__doc__, repetitions=3, window=4.0)
    options.add_argument("--models", nargs="+", choices=KINDS, default=["tiny", "transformer"])
    options.add_argument("--rate", type=float, default=100.0, help="requests per second")
    arguments = options.parse_args()
    steady_malloc()
    if arguments.work:
        what = json.loads(arguments.work)
        if len(what) == 2:
            package(*what)
        else:
            print(json.dumps(work(*what)))
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: str(Path(folder) / f"{kind}.pt2") for kind in arguments.models}
        for what in paths.items():
            assert launch(__file__, what, 2).wait() == 0
        raw = interleaved(
            paths, arguments.repetitions, lambda kind: repeat(kind, arguments.window, arguments.rate, paths[kind])
        )
    summaries = {kind: summary(repetitions) for kind, repetitions in raw.items()}
    write("inference", {"summary": summaries}, arguments.output)
    for kind, ways in summaries.items():
        for how, figures in ways.items():
            print(f"{kind}, {how}: the training makes {shown(figures.pop('training'))} steps/s")
            for what, each in figures.items():
                print(f"    {what:22}", "  ".join(f"{name} {shown(figure)}" for name, figure in each.items()))


if __name__ == "__main__":
    main()
