"""What runs on the GPU while two jobs share it: a picture of 20 ms, and how well the secondary fills the gaps.

Two trainings of shufflenet-512 in torchshare under policy="strict" run for about a second under torch.profiler. Its
kernels come with their stream's id: the primary's is the one with a marker kernel, which the primary launches once; the
secondary's the busiest of the others. On the CPU, only to see whether it runs, ops stand for kernels and threads for
streams; what an op waits at the gate counts as the op's time there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

sys.path.append(str(Path(__file__).parents[1]))

import torchshare

from record import RESULTS
from training import StepClock, Training

KIND = "shufflenet-512"
LANES = ("primary", "secondary")
PICTURE_MS = 20.0
MARKER = "spin_kernel"  # of torch.cuda._sleep
MARKER_CYCLES = 1000
KERNELS = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}  # categories of a trace's events
Spans = np.ndarray  # (n, 2): begin and end of each in ms, in order, none touching another


class MarkingClock(StepClock):
    """Also marks its job's stream in the trace, after the first step that ends while one is taken."""

    def __init__(self, device: str, warm: threading.Barrier, tracing: threading.Event) -> None:
        super().__init__(device, warm)
        self.thread = 0  # of the job, as the trace has it
        self._cuda, self._tracing = device == "cuda", tracing

    def step_done(self) -> bool:
        if self._tracing.is_set() and not self.thread:
            self.thread = threading.get_native_id()
            if self._cuda:
                torch.cuda._sleep(MARKER_CYCLES)
        return super().step_done()


def trace(device: str, dtype: torch.dtype, tiny: bool, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """The events of the profiler's trace, and the primary's thread."""
    warm, tracing = threading.Barrier(len(LANES) + 1), threading.Event()
    clocks = [MarkingClock(device, warm, tracing), StepClock(device, warm)]

    def train(job: torchshare.Job, clock: StepClock) -> None:
        try:
            Training(KIND, device, dtype, tiny).run(clock, job)
        except BaseException:
            warm.abort()
            raise

    with torchshare.Runtime(device=device, policy="strict") as runtime:
        for name, clock in zip(LANES, clocks, strict=True):
            runtime.submit(lambda job, clock=clock: train(job, clock), name=name, priority=name, threads=1)
        runtime.start()
        try:
            warm.wait()
        except threading.BrokenBarrierError:
            runtime.wait()  # raises what the job did
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        everywhere = _ExperimentalConfig(profile_all_threads=device == "cpu")  # on the GPU it is so by itself
        with profile(activities=[activity], experimental_config=everywhere) as taken:
            tracing.set()
            time.sleep(seconds)
        for clock in clocks:
            clock.deadline = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        taken.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"], clocks[0].thread


def lanes(events: list[dict[str, Any]], device: str, thread: int) -> list[Spans]:
    """When kernels of each job ran."""
    owners: dict[Any, list[dict[str, Any]]] = {}  # by stream
    for event in events:
        if event.get("cat") in KERNELS[device]:
            owners.setdefault(event["args"]["stream"] if device == "cuda" else event["tid"], []).append(event)
    sizes = {stream: len(kernels) for stream, kernels in owners.items()}
    marked = [stream for stream, kernels in owners.items() if any(MARKER in event["name"] for event in kernels)]
    primary = next(iter(marked), None) if device == "cuda" else thread
    others = sorted((stream for stream in owners if stream != primary), key=lambda stream: -sizes[stream])
    if primary not in owners or not others:
        raise RuntimeError(f"expected kernels of two jobs; the primary's stream is {primary}, kernels {sizes}")
    print(f"kernels by stream: {sizes}; the primary's is {primary}, the secondary's {others[0]}")
    mine = [[(event["ts"], event["ts"] + event["dur"]) for event in owners[stream]] for stream in (primary, others[0])]
    first = min(begin for spans in mine for begin, _ in spans)
    return [merged([(begin - first, end - first) for begin, end in spans]) for spans in mine]


def merged(spans_us: list[tuple[float, float]]) -> Spans:
    """The union of spans in microseconds."""
    begins, ends = np.array(sorted(spans_us)).T / 1e3
    ends = np.maximum.accumulate(ends)
    new = np.append(True, begins[1:] > ends[:-1])  # where a span touches none before it
    return np.stack([begins[new], ends[np.append(np.flatnonzero(new)[1:] - 1, -1)]], axis=1)


def covered(spans: Spans, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How much of each of the intervals lies within the spans, in ms."""
    times = spans.ravel()
    within = np.append(0.0, np.cumsum(np.diff(times) * (np.arange(len(times) - 1) % 2 == 0)))  # until each of the times
    found: np.ndarray = np.interp(ends, times, within) - np.interp(begins, times, within)
    return found


def report(primary: Spans, secondary: Spans) -> str:
    """How the secondary fills the gaps between the primary's kernels."""
    begins, ends = primary[:-1, 1], primary[1:, 0]
    filled, gap_ms = covered(secondary, begins, ends), (ends - begins).sum()
    whole_ms = primary[-1, 1] - primary[0, 0]
    busy_ms = (secondary[:, 1] - secondary[:, 0]).sum()
    beside_ms = covered(primary, secondary[:, 0], secondary[:, 1]).sum()
    return (
        f"primary: kernels for {1 - gap_ms / whole_ms:.1%} of {whole_ms:.0f} ms, {len(begins)} gaps between them\n"
        f"gaps filled: {filled.sum():.1f} of {gap_ms:.1f} ms ({filled.sum() / max(gap_ms, 1e-9):.1%}), "
        f"{(filled > 0).sum()} of {len(begins)} at least in part\n"
        f"secondary: kernels for {busy_ms:.1f} ms, {beside_ms / busy_ms:.1%} of it beside a kernel of the primary"
    )


def draw(spans: list[Spans], path: Path) -> None:
    """Both lanes in `PICTURE_MS` from the middle of the trace."""
    begin = (spans[0][0, 0] + spans[0][-1, 1] - PICTURE_MS) / 2
    figure = Figure(figsize=(12, 2.4), layout="constrained")
    axes = figure.subplots()
    for index, each in enumerate(spans):
        seen = each[(each[:, 1] > begin) & (each[:, 0] < begin + PICTURE_MS)] - [begin, begin]
        axes.broken_barh([(a, b - a) for a, b in seen], (index - 0.35, 0.7), facecolors=f"C{index}")
    axes.set(yticks=range(len(LANES)), yticklabels=LANES, xlim=(0, PICTURE_MS), ylim=(1.5, -0.5), xlabel="ms")
    axes.set_title(f"Kernels of two trainings of {KIND}, policy strict")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tiny", action="store_true", help="small models and batches, to see whether it runs")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu", help="folder of timeline.png")
    arguments = parser.parse_args()
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    events, thread = trace(arguments.device, dtype, arguments.tiny, arguments.seconds)
    spans = lanes(events, arguments.device, thread)
    print(report(*spans))
    draw(spans, arguments.output / "timeline.png")


if __name__ == "__main__":
    main()
