"""What torchshare costs a training that is alone on the GPU: plain torch and each policy, in turns.

Each mode is a process of its own. They take turns of a few steps, while all others are idle, so that a change of the
machine's speed affects all alike. In the end, each runs a few steps under torch's profiler; alone.json lists what is
called, and what the GPU spends time on, by how much more than in plain torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.append(str(Path(__file__).parents[1]))

from child import Child
from rich.table import Table

import torchshare
from torchshare.cli.outputs import print_table

from record import RESULTS, shown, spread, write
from training import KINDS, Training

PLAIN = "plain"
MODES = (PLAIN, "priority", "strict", "best_fit")
WARM_UP_STEPS = 8  # all ops are known to the gate's policies by then
PROFILED_STEPS = 3


class Turns:
    """A meter that runs as many steps as the parent asks for, prints what they took, and waits for the next request."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._left = WARM_UP_STEPS
        self._steps = 0
        self._profiler: profile | None = None
        self._begin = self._cpu = 0.0

    def step_done(self) -> bool:
        if self._device == "cuda":
            torch.cuda.current_stream().synchronize()
        self._left -= 1
        return self._left > 0 or self._answer()

    def _answer(self) -> bool:
        """False where the parent wants no more."""
        found: dict[str, Any] = {"calls": {}, "busy_us": {}}
        if self._steps:
            found["step_s"] = (time.perf_counter() - self._begin) / self._steps
            found["cpu_s"] = (time.process_time() - self._cpu) / self._steps
        if self._profiler is not None:
            self._profiler.stop()
            for event in self._profiler.key_averages():
                found["calls"][event.key] = event.count / self._steps
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    found["busy_us"][event.key] = event.self_device_time_total / self._steps
        print(json.dumps(found), flush=True)
        asked = json.loads(input())
        self._steps = self._left = asked["steps"]
        self._profiler = None
        if asked["profiled"]:
            self._profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profiler.start()
        self._begin, self._cpu = time.perf_counter(), time.process_time()
        return self._left > 0


def work(mode: str, kinds: list[str], device: str, tiny: bool) -> None:
    """Trains each kind for as long as the parent asks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in kinds:
        if mode == PLAIN:
            with torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None):
                Training(kind, device, torch.float32, tiny).run(Turns(device))
            continue
        with torchshare.Runtime(device=device, policy=mode) as runtime:
            runtime.submit(
                lambda job, kind=kind: Training(kind, device, torch.float32, tiny).run(Turns(device), job),
                name=kind, priority="primary", threads=1,
            )  # fmt: skip
            runtime.wait()


def turn(mode: Child, steps: int, profiled: bool = False) -> dict[str, Any]:
    """What so many steps of that mode took."""
    mode.tell({"steps": steps, "profiled": profiled})
    return dict(mode.hear())


def more(plain: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    """The differences from plain torch, per step, the greatest first."""
    differences = Counter(ours)
    differences.subtract(plain)
    return {key: round(value, 2) for key, value in differences.most_common() if abs(value) >= 0.5}


def compare(modes: dict[str, Child], arguments: argparse.Namespace) -> dict[str, Any]:
    """One kind of training, in all modes."""
    for mode in modes.values():
        mode.hear()  # it is warm
    one = turn(modes[PLAIN], 2)["step_s"]
    steps = max(1, round(arguments.window / one))
    rounds = []
    for index in range(arguments.rounds):
        order = list(modes) if index % 2 == 0 else list(modes)[::-1]
        rounds.append({name: turn(modes[name], steps) for name in order})
    profiles = {name: turn(mode, PROFILED_STEPS, profiled=not arguments.tiny) for name, mode in modes.items()}
    for mode in modes.values():
        mode.tell({"steps": 0, "profiled": False})
    found: dict[str, Any] = {"steps of a turn": steps}
    for name in modes:
        found[name] = {
            "step_ms": spread([1e3 * turns[name]["step_s"] for turns in rounds]),
            "cpu_ms": spread([1e3 * turns[name]["cpu_s"] for turns in rounds]),
            "over_plain": spread([turns[name]["step_s"] / turns[PLAIN]["step_s"] for turns in rounds]),
            "busy_ms": sum(profiles[name]["busy_us"].values()) / 1e3,
            **{f"more_{what}": more(profiles[PLAIN][what], profiles[name][what]) for what in ("calls", "busy_us")},
        }
    return found


def measure_and_print(modes: dict[str, Child], arguments: argparse.Namespace) -> None:
    found = {}
    for kind in arguments.kinds:
        found[kind] = compare(modes, arguments)
        write("alone", found, arguments.output)
        drawn = Table(kind, "step ms", "over plain", "CPU ms", "GPU busy ms")
        for name in modes:
            figures = found[kind][name]
            drawn.add_row(
                name, shown(figures["step_ms"], 2), shown(figures["over_plain"], 3), shown(figures["cpu_ms"], 2),
                f"{figures['busy_ms']:.2f}",
            )  # fmt: skip
        print_table(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["shufflenet-512", "resnet50-4", "lstm-64"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="plain is always measured")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--window", type=float, default=0.3, help="seconds of a turn")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and batches, to see whether it runs")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu", help="folder of alone.json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*json.loads(arguments.work))
        return
    common = [arguments.kinds, arguments.device, arguments.tiny]
    with contextlib.ExitStack() as stack:
        names = dict.fromkeys([PLAIN, *arguments.modes])
        modes = {name: stack.enter_context(Child(__file__, [name, *common])) for name in names}
        measure_and_print(modes, arguments)


if __name__ == "__main__":
    main()
