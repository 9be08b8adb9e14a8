"""Measures priority inversion: the primary's steps and close() on a machine whose cores run ordinary processes.

A secondary of idle priority hardly runs there; the primary may wait for locks that it holds when preempted, such as the
GIL. Each window is a process of its own; builds and "alone" are interleaved in one run. `--before` names another
checkout with a built `_C` to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from record import RESULTS, interleaved, shown, spread, write

HOG = "while True: pass"
LONG_S = 0.05  # longer steps count as stalled; a step computes for 2 ms


def window(seconds: float, shared: bool, metered: bool) -> dict[str, Any]:
    """Step times of a primary in milliseconds, beside a secondary of tiny ops or alone, and the time of close()."""
    import torch
    from torch import nn

    import torchshare

    def train(width: int, layers: int, rows: int, times: list[float], until_s: float) -> Any:
        def body(job: torchshare.Job) -> None:
            model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            end = time.monotonic() + until_s
            last = time.perf_counter()
            for batch in job.batches(iter(lambda: torch.randn(rows, width), None)):
                batch.backward(lambda x: model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                now = time.perf_counter()
                times.append(1e3 * (now - last))
                last = now
                if time.monotonic() > end:
                    return

        return body

    steps: list[float] = []
    with torchshare.Runtime(device="cpu") as runtime:
        options = {"threads": 1, "meter_memory": metered}
        primary = runtime.submit(train(256, 8, 32, steps, seconds), name="primary", priority="primary", **options)
        if shared:
            runtime.submit(train(32, 20, 16, [], 1e9), name="secondary", **options)
        runtime.start()
        while primary.state not in ("finished", "failed"):
            time.sleep(0.05)
        begin = time.perf_counter()
        runtime.close()
        return {"steps": steps[20:], "close_s": time.perf_counter() - begin}


def measure(build: Path | None, seconds: float, metered: bool) -> dict[str, float]:
    """One window in its own process; None: the primary alone, in this build. Ignores the exit status, because builds
    before commit 69d0c23 sometimes crash at exit, after printing."""
    command = [sys.executable, __file__, "--child", str(seconds), str(int(build is not None)), str(int(metered))]
    path = str(build or Path(__file__).parents[1])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    return {**figures(json.loads(done.stdout.splitlines()[-1])), "crashed": float(done.returncode != 0)}


def figures(found: dict[str, Any]) -> dict[str, float]:
    """In milliseconds, except `close_s`; `stalled`: the fraction of time in steps of over 50 ms."""
    steps = np.array(found["steps"])
    return {
        **{f"p{quantile}": float(np.percentile(steps, quantile)) for quantile in (50, 99, 99.9)},
        "max": float(steps.max()),
        "stalled": float(steps[steps > 1e3 * LONG_S].sum() / steps.sum()),
        "close_s": found["close_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window")
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--hogs", type=int, default=os.cpu_count(), help="ordinary processes beside the jobs")
    parser.add_argument("--meter-memory", action="store_true", help="both jobs count their tensors")
    parser.add_argument("--before", type=Path, help="another checkout, built")
    arguments = parser.parse_args()
    builds = {"alone": None, "shared": Path(__file__).parents[1]}
    if arguments.before is not None:
        builds["shared, before"] = arguments.before.resolve()
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(arguments.hogs)]
    try:
        raw = interleaved(
            builds,
            arguments.repetitions,
            lambda name: measure(builds[name], arguments.seconds, arguments.meter_memory),
        )
    finally:
        for hog in hogs:
            hog.kill()
    summary = {
        name: {figure: spread([run[figure] for run in runs]) for figure in runs[0]} for name, runs in raw.items()
    }
    for name, row in summary.items():
        print(name, *(f"{figure} {shown(value)}" for figure, value in row.items()), sep="  ")
    write("inversion", {"hogs": arguments.hogs, "summary": summary, "raw": raw}, RESULTS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(window(float(sys.argv[2]), bool(int(sys.argv[3])), bool(int(sys.argv[4])))))
    else:
        main()
