"""Measures FIKIT's table (arXiv 2311.10359): ten pairs of models that answer requests, the first with high priority.

The high-priority model answers requests as they arrive (Poisson, at a share of what it can serve alone, batches of 1 to
8); the other is asked again as soon as it has answered. Default sharing is two processes. torchshare fills the gaps of
the first with ops of the second (policy="best_fit"), with and without the device's own priority (SCHED_IDLE; on a GPU,
that of streams). On a GPU, also two processes with MPS where it can be had, two threads and policy="strict"; no CUDA
graphs, for `job.graph` captures the loss of a training. Every mode of a repetition is a fresh process (or two), with
the same arrivals; all are interleaved. Latency counts from the arrival.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu import models
from gpu.mps import multi_process_service

import gaps
import table
from pairs import collect, ended, in_window, launch, wait_until_ready
from record import interleaved, parser, spread, steady_malloc, write

LOAD = 0.3
PAIRS = [
    *("alexnet+vgg11", "vgg11+resnet50", "resnet18+vgg11", "resnet50+inception", "mobilenet+resnet50"),
    *("shufflenet+densenet", "inception+alexnet", "densenet+resnet18", "bert+vgg11", "resnet50+bert"),
]  # high priority + low priority
SIDES = {"cpu": 64, "cuda": 224}  # pixels a side of an image
TOKENS = 64
MPS = "two processes, MPS"
FILLING = ["best fit", "best fit + SCHED_IDLE"]
# Modes of gaps.py in which both models run, and MPS; the first is default sharing, which is always measured.
SHARED = {"cpu": [gaps.PLAIN, *FILLING], "cuda": [gaps.PLAIN, MPS, "two threads", "strict", *FILLING]}
# The high-priority model alone: in plain torch (always measured), in the sharing stage and in the measuring stage.
ALONE, WATCHED, TIMED = "alone", "watched", "timed"
PAPERS = """\
FIKIT, kernels of one GPU: high-priority models 1.32 to 16.41 times faster than with default sharing, over 3.4 times in
more than half of the cases; low-priority ones at 0.86 to 1 of it; measuring and scheduling cost less than 5 %.
Tally (arXiv 2410.07381), beside training: p99 of high-priority inference 7.2 % above alone.
Orion (EuroSys 2024), beside best-effort inference: up to 7.3 times the requests per GPU."""


def small_bert() -> torch.nn.Module:
    """BERT with 4 layers of 256, for a CPU."""
    return models.Encoder(30_522, 256, 4, 4, 2)


def register(device: str, tiny: bool) -> None:
    """Adds the models of the table to those that gaps.py can serve."""
    side = SIDES["cpu"] if tiny else SIDES[device]
    image = (gaps.LARGEST_REQUEST, 3, side, side)
    words = (gaps.LARGEST_REQUEST, TOKENS)
    for name in {name for pair in PAIRS for name in pair.split("+")} - {"bert"}:
        gaps.SERVED[name] = partial(getattr(models, name), tiny), partial(torch.randn, *image)
    bert = small_bert if device == "cpu" else partial(models.bert, tiny)
    gaps.SERVED["bert"] = bert, partial(torch.randint, 10_000, words)


def launched(
    rates: dict[str, float], mode: str, device: str, tiny: bool, environment: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """The processes that measure one or two models in a mode. `rates`: requests per second of each; 0: one after the
    other. `environment`: added to theirs."""
    processes = [[kind] for kind in rates] if mode in (gaps.PLAIN, MPS) else [list(rates)]
    how = {gaps.PLAIN: ALONE, MPS: ALONE, WATCHED: "best fit", TIMED: "torchshare"}.get(mode, mode)
    works = [[kinds, how, [rates[kind] for kind in kinds], device, mode == TIMED, tiny] for kinds in processes]
    cores = 2 if device == "cpu" else os.cpu_count() or 1
    return [launch(__file__, work, cores, environment={**os.environ, **(environment or {})}) for work in works]


def repeat(pair: str, modes: list[str], device: str, window: float, tiny: bool) -> dict[str, Any]:
    """One repetition: the high-priority model alone, in torchshare alone, then both in every mode."""
    high, low = pair.split("+")
    times = collect(launched({high: 0.0}, ALONE, device, tiny), window / 2)[0]["times"]
    if not times:
        raise RuntimeError(f"{high} answers no request in {window / 2:g} s: --window must be longer, got {window:g}")
    service = float(np.mean(times))
    arriving = {high: LOAD / service}
    both = {**arriving, low: 0.0}
    with contextlib.ExitStack() as stack:
        alone = {mode: launched(arriving, mode, device, tiny) for mode in (ALONE, WATCHED, TIMED) if mode in modes}
        shared = {mode: launched(both, mode, device, tiny) for mode in modes if mode in gaps.MODES}
        if MPS in modes:
            try:
                service_of = stack.enter_context(multi_process_service())
                shared[MPS] = launched(both, MPS, device, tiny, service_of)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                print(f"{pair} {MPS}: {error}", file=sys.stderr)
        processes = stack.enter_context(ended(each for of in (*alone.values(), *shared.values()) for each in of))
        wait_until_ready(processes)  # nothing else runs while they measure in turn
        return {
            "service_s": service,
            "alone": {mode: gaps.condensed(in_window(each, window)[0]) for mode, each in alone.items()},
            "shared": {mode: [gaps.condensed(job) for job in in_window(each, window)] for mode, each in shared.items()},
        }


def summary(repetitions: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Per mode: figures of the high-priority model's latency, the low one's rate, the gaps; and what it costs alone."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(mode: str, name: str, value: float) -> None:
        found.setdefault(mode, {}).setdefault(name, []).append(value)

    for repetition in repetitions:
        alone, default = repetition["alone"], repetition["shared"][gaps.PLAIN]
        for mode, (high, low) in repetition["shared"].items():
            for name in ("mean", "p99"):
                add(mode, f"{name}_speedup", gaps.over(default[0][name], high[name]))
                add(mode, f"{name}_vs_alone", gaps.over(high[name], alone[ALONE][name]))
            add(mode, "low_ratio", gaps.over(low["rate"], default[1]["rate"]))
            if mode in FILLING:
                add(mode, "mispredicted", high["report"]["returns_into_filler"] / max(1, high["report"]["gaps_filled"]))
        for mode in (WATCHED, TIMED):
            if mode in alone:
                add(mode, "cost", gaps.over(alone[mode]["p50"], alone[ALONE]["p50"]))
    return {mode: {name: spread(values) for name, values in figures.items()} for mode, figures in found.items()}


def verdict(summaries: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[str]:
    """What was measured of what the paper claims; a line per way to fill gaps that was measured."""
    lines = []
    for mode in FILLING:
        speedups = [modes[mode]["mean_speedup"]["median"] for modes in summaries.values() if mode in modes]
        low = [modes[mode]["low_ratio"]["median"] for modes in summaries.values() if mode in modes]
        if not low:
            continue
        lines.append(
            f"{mode}: the high-priority model is {min(speedups):.2f} to {max(speedups):.2f} times faster than "
            f"with default sharing, {statistics.median(speedups):.2f} in the median; the other has {min(low):.2f} to "
            f"{max(low):.2f} of its rate there"
        )
    return lines


def main() -> None:
    arguments_of = parser(__doc__, repetitions=3, window=4.0)
    arguments_of.add_argument("--pairs", nargs="+", choices=PAIRS, default=PAIRS)
    optional = [WATCHED, TIMED, *SHARED["cuda"][1:]]
    arguments_of.add_argument("--without", nargs="+", choices=optional, default=[], help="modes to leave out")
    arguments_of.add_argument("--device", choices=SIDES, default="cpu")
    arguments_of.add_argument("--tiny", action="store_true", help="small models and images, to see whether it runs")
    arguments = arguments_of.parse_args()
    steady_malloc()
    if arguments.work:
        kinds, mode, rates, device, timed, tiny = json.loads(arguments.work)
        register(device, tiny)
        print(json.dumps(gaps.work(kinds, mode, rates, device, timed)))
        return
    device = arguments.device
    modes = [mode for mode in (ALONE, WATCHED, TIMED, *SHARED[device]) if mode not in arguments.without]
    raw: dict[str, list[dict[str, Any]]] = {}
    summaries = {}
    failed: list[str] = []

    def measure_and_write(pair: str) -> None:
        """After each pair, so that what is cut short leaves what it had."""
        try:
            found = repeat(pair, modes, device, arguments.window, arguments.tiny)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{pair}: {error}", file=sys.stderr)
            failed.append(pair)
            return
        raw.setdefault(pair, []).append(found)
        summaries[pair] = summary(raw[pair])
        name = "fikit" if device == "cpu" else "fikit_gpu"
        write(name, {"summary": summaries, "repetitions": raw}, arguments.output)

    interleaved(arguments.pairs, arguments.repetitions, measure_and_write)
    if summaries:
        print(table.fikit(summaries), *verdict(summaries), PAPERS, sep="\n")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
