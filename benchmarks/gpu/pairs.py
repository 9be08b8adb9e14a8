"""Pairs of trainings on one GPU, and the ways to run two of them, interleaved.

Each mode of each repetition is a fresh process (or two). Both jobs are built and warm, then run through the same window
of time, and a little longer, so that neither is alone in any of it; a job's rate is its steps per second in the window,
parts of steps included, its step times those of all steps that lie in the window or reach into it. Relative rates are
divided by the job's rate alone, without torchshare, in the same repetition; 1.00 is as fast as alone, and an aggregate
of 1.00 is what running one after the other gives. A mode that fails is recorded as {"error": text}.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from child import Child

import torchshare
from torchshare.cli.outputs import print_table

from figures import BOUNDED, MPS, OURS, SOLO, TWO, Figures, Outcome, summary, table, targets
from mps import multi_process_service
from record import RESULTS, interleaved, write
from training import StepClock, Training

PAIRS = {
    "shufflenet-512+same": ("shufflenet-512", "shufflenet-512"),
    "resnet50-4+same": ("resnet50-4", "resnet50-4"),
    "resnet18-128+lstm-64": ("resnet18-128", "lstm-64"),
    "mobilenet-64+bert-8": ("mobilenet-64", "bert-8"),
    "gpt2-1+resnet50-128": ("gpt2-1", "resnet50-128"),
    "resnet50-256+same": ("resnet50-256", "resnet50-256"),
}  # primary, secondary
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES = ["alone", SOLO, "in-turn", TWO, MPS, "threads", *OURS]  # alone is always measured, in-turn never
LEAD_S, TAIL_S = 1.0, 0.3  # from when both go on together to the window, and from its end
BOUND_LEAD_S = 8.0  # instead of LEAD_S, until `max_slowdown` has learned what the secondary costs


@dataclass(frozen=True)
class Setting:
    """What all measurements of a pair have in common. `limit`: seconds until one is given up."""

    dtype: str
    device: str
    tiny: bool
    window: float
    limit: float


def work(kinds: list[str], mode: str, setting: Setting) -> list[Figures]:
    """Trains one or two jobs in this process, in the window that the parent gives; returns their figures."""
    warm = threading.Barrier(len(kinds) + 1)
    clocks = [StepClock(setting.device, warm) for _ in kinds]
    failures: list[BaseException] = []
    bounds: list[dict[str, Any]] = []

    def train(index: int, job: torchshare.Job | None = None) -> None:
        torch.set_num_threads(1)  # of this thread
        try:
            own = torch.cuda.Stream() if mode == "threads" and setting.device == "cuda" else None
            with torch.cuda.stream(own):
                training = Training(kinds[index], setting.device, DTYPES[setting.dtype], setting.tiny)
                training.run(clocks[index], job, graph=mode.endswith("graphs"))
        except BaseException as failure:
            failures.append(failure)
            warm.abort()

    def coordinate() -> tuple[float, float]:
        with contextlib.suppress(threading.BrokenBarrierError):
            warm.wait()
            print(json.dumps("ready"), flush=True)
            start, end = json.loads(input())
            for clock in clocks:
                clock.deadline = end + TAIL_S
            return start, end
        return 0.0, 0.0  # a job failed

    if mode == SOLO or mode in OURS:
        options, second = OURS.get(mode, ({}, {}))
        with torchshare.Runtime(device=setting.device, **options) as runtime:
            for index, kind in enumerate(kinds):
                runtime.submit(
                    lambda job, index=index: train(index, job),
                    name=f"{index} {kind}", priority="secondary" if index else "primary", threads=1,
                    **(second if index else {}),
                )  # fmt: skip
            runtime.start()
            window = coordinate()
            runtime.wait()
            bounds = [asdict(kept) for kept in runtime.bound_report()]
    else:
        threads = [threading.Thread(target=train, args=(index,)) for index in range(len(kinds))]
        for thread in threads:
            thread.start()
        window = coordinate()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    found = [clock.figures(*window) for clock in clocks]
    for kept in bounds:
        found[0] |= {name: kept[name] for name in ("windows", "windows_inside", "step_alone_s", "loss", "share")}
    return found


def start(kinds: list[str], mode: str, setting: Setting, stack: contextlib.ExitStack) -> list[Child]:
    """The processes of a mode, one for both jobs or one for each, which load torch and then wait for the environment
    with which they go on; `stack` ends them."""
    groups = [[kind] for kind in kinds] if mode in (TWO, MPS) else [kinds]
    return [stack.enter_context(Child(__file__, [group, mode, asdict(setting)])) for group in groups]


def measure(children: list[Child], mode: str, setting: Setting) -> list[Figures]:
    """The figures of each job in that mode. RuntimeError, OSError or SubprocessError: why there are none."""
    with multi_process_service() if mode == MPS else contextlib.nullcontext({}) as environment:
        for child in children:
            child.tell(environment)
        for child in children:
            child.hear()  # it is ready
        begin = time.monotonic() + (BOUND_LEAD_S if mode in BOUNDED else LEAD_S)
        for child in children:
            child.tell([begin, begin + setting.window])
        found: list[Figures] = []
        for child in children:
            found += child.hear()
            child.wait(setting.limit)
        return found


def repeat(pair: str, modes: list[str], setting: Setting) -> Iterator[dict[str, Outcome]]:
    """One repetition of a pair: each job alone, then every mode. All processes load torch first, at once. Yields what
    was measured so far, after each mode."""
    kinds = list(PAIRS[pair])
    stack = contextlib.ExitStack()

    def attempt(children: list[Child], mode: str) -> Outcome:
        try:
            found = measure(children, mode, setting)
            print(f"{pair} {setting.dtype} {mode}: {', '.join(str(each['rate']) for each in found)}", file=sys.stderr)
            return found
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"{pair} {setting.dtype} {mode}: {error}", file=sys.stderr)
            for child in children:
                child.kill()  # or one would train beside the next modes
            return {"error": str(error)}

    with stack:
        alone = {kind: start([kind], "alone", setting, stack) for kind in dict.fromkeys(kinds)}
        shared = {
            mode: start(kinds[:1] if mode == SOLO else kinds, mode, setting, stack)
            for mode in modes
            if mode not in ("alone", "in-turn")
        }
        found = {kind: attempt(children, "alone") for kind, children in alone.items()}
        failed = [outcome for outcome in found.values() if isinstance(outcome, dict)]
        outcomes: dict[str, Outcome] = {"alone": failed[0] if failed else [found[kind][0] for kind in kinds]}
        yield outcomes
        for mode, children in shared.items():
            outcomes[mode] = attempt(children, mode)
            yield outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds until a measurement is given up")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and batches, to see whether it runs")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu", help="folder of pairs.json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        kinds, mode, setting = json.loads(arguments.work)
        os.environ.update(json.loads(input()))
        faulthandler.dump_traceback_later(setting["limit"], exit=True)
        warnings.simplefilter("ignore")
        print(json.dumps(work(kinds, mode, Setting(**setting))))
        return
    raw: dict[str, list[dict[str, Outcome]]] = {}
    summaries: dict[str, dict[str, Any]] = {}

    def measure_and_write(name: str) -> None:
        """After each mode, so that what is cut short leaves what it had."""
        pair, dtype = name.split()
        setting = Setting(dtype, arguments.device, arguments.tiny, arguments.window, arguments.limit)
        earlier = raw.get(name, [])
        for outcomes in repeat(pair, arguments.modes, setting):
            raw[name] = [*earlier, outcomes]
            summaries[name] = summary(raw[name])
            write("pairs", {"summary": summaries, "repetitions": raw}, arguments.output)

    names = [f"{pair} {dtype}" for pair in arguments.pairs for dtype in arguments.dtypes]
    interleaved(names, arguments.repetitions, measure_and_write)
    for name, modes in summaries.items():
        print_table(table(name, modes))
    print("", *targets(summaries), sep="\n")


if __name__ == "__main__":
    main()
