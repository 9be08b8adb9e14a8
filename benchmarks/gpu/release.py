"""Measures the gate on a GPU: from the admission of the secondary to the end of its first kernel, and the CPU time of a
marker. `python benchmarks/gpu/release.py`; writes benchmarks/results/gpu/release.json.

The primary keeps the GPU busy for 2 ms, then waits for its input for 3 ms, again and again. The secondary launches one
small kernel at a time and looks at an event behind it without a pause. The gate's release is the end of the wait on the
timeline; from there to the event is launch, kernel and look: more than the time to the first kernel, never less. The
same loop in plain torch says what launch, kernel and look take without a gate, and what they take after a rest of 3 ms.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

import torchshare
from torchshare import _C

sys.path.append(str(Path(__file__).parents[1]))
from record import RESULTS, write

BUSY_CYCLES = 3_500_000  # about 2 ms
IDLE_S = 3e-3
MARKS = 10_000


def primary(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        torch.ones(1, device="cuda")
        torch.cuda._sleep(BUSY_CYCLES)
        torch.cuda.current_stream().synchronize()
        time.sleep(IDLE_S)


def secondary(seconds: float) -> list[int]:
    """When each of its kernels was done, in ns of time.monotonic_ns()."""
    x, done = torch.ones(1024, device="cuda"), torch.cuda.Event()
    ends = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        x.add_(1)
        done.record()
        while not done.query():
            pass
        ends.append(time.monotonic_ns())
    return ends


def rested(seconds: float) -> np.ndarray:
    """Microseconds from the end of each rest of the thread to the end of its next kernel, in plain torch."""
    x, done = torch.ones(1024, device="cuda"), torch.cuda.Event()
    times = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(IDLE_S)
        begin = time.monotonic_ns()
        x.add_(1)
        done.record()
        while not done.query():
            pass
        times.append(time.monotonic_ns() - begin)
    return np.array(times) / 1e3


def released(seconds: float) -> np.ndarray:
    """Microseconds from each release to the end of the kernel that was let in."""
    with torchshare.Runtime(device="cuda", policy="strict") as runtime:
        runtime.submit(lambda job: primary(seconds), name="primary", priority="primary", threads=1)
        runtime.submit(lambda job: secondary(seconds), name="secondary", threads=1)
        ends = np.array(runtime.wait()["secondary"].value)
        waits = np.array([event[3] for event in runtime.events() if event[0] == "wait" and event[1] == "secondary"])
    waits = waits[(waits > ends[0]) & (waits < ends[-1])]
    return (ends[np.searchsorted(ends, waits)] - waits) / 1e3


def percentiles(times_us: np.ndarray) -> dict[str, float]:
    return {"median_us": float(np.median(times_us)), "p99_us": float(np.percentile(times_us, 99))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu")
    arguments = parser.parse_args()
    plain = percentiles(np.diff(secondary(1.0)) / 1e3)
    after_rest = percentiles(rested(1.0))
    released(0.5)
    times = released(arguments.seconds)
    figures = {"releases": len(times), **percentiles(times)}
    marks = {}
    for kind in ("write", "event"):
        put, look = _C.measure_marker_cost(kind, MARKS)
        marks[kind] = {"put_us": 1e6 * put, "look_us": 1e6 * look}
    plains = {"plain": plain, "plain_after_rest": after_rest}
    write("release", {"release": figures, **plains, "marks": marks}, arguments.output)
    reached = "reached" if figures["p99_us"] <= 30 else "NOT reached"
    print(f"release to the end of the first kernel: {figures}; target 30 us at p99: {reached}")
    print(f"launch, kernel and look in plain torch: {plain}, after a rest: {after_rest}; marks: {marks}")


if __name__ == "__main__":
    main()
