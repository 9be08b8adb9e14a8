"""Measures the simulator's speed: the 240-job trace, Philly's 82,247 jobs, and generated traces of 1e3 to 1e6 jobs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchshare import _core
from torchshare.simulation.adaptdl import read_packaged
from torchshare.simulation.generated import JobSize, generate
from torchshare.simulation.job_trace import Limits, Trace, read_trace
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Setting, make_cluster

from record import RESULTS, spread, write
from study import DATA

POLICIES = _core.cluster_policy_names()
SIZES = (1_000, 10_000, 100_000, 1_000_000)
OVERLOAD = 1.5  # requested / available GPU-seconds: the queue grows with the trace


def run(trace: Trace, policy: str, setting: Setting) -> float:
    """Seconds to simulate a trace in memory."""
    began = time.perf_counter()
    simulator = _core.Simulator(make_cluster(trace, uniform(1.25), setting), policy)
    while simulator.run(1_000):
        pass
    return time.perf_counter() - began


def generated(jobs: int) -> Trace:
    """Heavy-tailed jobs of 1 to 8 GPUs that overload 64 GPUs: about a third of the jobs is in the queue."""
    mix = tuple(JobSize(gpus, share=1, median_s=150, sigma=1.5) for gpus in (1, 2, 4, 8))
    return generate(jobs, Limits(Setting.gpus), mix=mix, load=OVERLOAD, seed=jobs)


def small() -> dict[str, Any]:
    (trace,) = read_packaged("adaptdl:240/1", Limits(Setting.gpus))
    return {policy: spread([1e3 * run(trace, policy, Setting()) for _ in range(20)]) for policy in POLICIES}


def philly(data: Path, policy: str, gpus: int) -> dict[str, float]:
    """Run in a process of its own, for its peak memory."""
    began = time.perf_counter()
    trace = read_trace(data / "adaptdl" / "traces" / "philly.csv", "philly", Limits(gpus=gpus))
    read = time.perf_counter() - began
    seconds = run(trace, policy, Setting(gpus=gpus))
    return {"read_s": read, "simulate_s": seconds, "peak_gib": peak_gib()}


def peak_gib() -> float:
    """Peak resident memory of this process. Not ru_maxrss, which includes the process that started this one."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**20


def in_process(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def plot(scaling: dict[str, dict[str, float]]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for policy in POLICIES:
        axes.plot(SIZES, [scaling[str(size)][policy] for size in SIZES], marker=".", label=policy)
    axes.set(
        xscale="log", yscale="log", xlabel="jobs in the trace", ylabel="µs per job", title="Time per job simulated"
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8, ncols=2)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for simulator_speed.json and .png")
    parser.add_argument("--philly", nargs=2, metavar=("POLICY", "GPUS"), help="only this; prints its figures as JSON")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"{parser.prog}: skipped, for the traces are not in {arguments.data}")
        return
    if arguments.philly:
        print(json.dumps(philly(arguments.data, arguments.philly[0], int(arguments.philly[1]))))
        return
    scaling = {
        str(size): {policy: 1e6 * run(trace, policy, Setting()) / size for policy in POLICIES}
        for size in SIZES
        for trace in [generated(size)]
    }
    summary = {
        "240 jobs on 64 GPUs, ms": small(),
        **{
            f"Philly on {gpus} GPUs": {policy: in_process("--philly", policy, str(gpus)) for policy in POLICIES}
            for gpus in (2500, 400)
        },
        "µs per job of generated traces": scaling,
    }
    write("simulator_speed", {"summary": summary}, arguments.out)
    plot(scaling).savefig(arguments.out / "simulator_speed.png", dpi=80)
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
