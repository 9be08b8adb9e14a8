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
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1]))

import torchshare
from torchshare._outputs import print_table

from models import StepClock, Training
from record import RESULTS, interleaved, shown, spread, write

PAIRS = {
    "shufflenet-512+same": ("shufflenet-512", "shufflenet-512"),
    "resnet50-4+same": ("resnet50-4", "resnet50-4"),
    "resnet18-128+lstm-64": ("resnet18-128", "lstm-64"),
    "mobilenet-64+bert-8": ("mobilenet-64", "bert-8"),
    "gpt2-1+resnet50-128": ("gpt2-1", "resnet50-128"),
    "resnet50-256+same": ("resnet50-256", "resnet50-256"),
}  # primary, secondary
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SOLO, TWO, MPS = "alone-torchshare", "processes", "processes-mps"
OURS = {f"torchshare-{policy}": policy for policy in ("priority", "strict", "best_fit")}
OURS["torchshare-graphs"] = "priority"
MODES = ["alone", SOLO, "in-turn", TWO, MPS, "threads", *OURS]  # alone is always measured, in-turn never
LEAD_S, TAIL_S = 1.0, 0.3  # from when both go on together to the window, and from its end
MPS_CONTROL = "nvidia-cuda-mps-control"
TARGET_PAIR = "shufflenet-512+same"
MAX_SLOWDOWN, MIN_SHARE, MAX_OVERHEAD = 1.02, 0.20, 0.01  # the targets
Figures = dict[str, float]
Outcome = list[Figures] | dict[str, str]  # of each job; or {"error": text}


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
            print("ready", flush=True)
            start, end = json.loads(input())
            for clock in clocks:
                clock.deadline = end + TAIL_S
            return start, end
        return 0.0, 0.0  # a job failed

    if mode == SOLO or mode in OURS:
        with torchshare.Runtime(device=setting.device, policy=OURS.get(mode, "priority")) as runtime:
            for index, kind in enumerate(kinds):
                runtime.submit(
                    lambda job, index=index: train(index, job),
                    name=f"{index} {kind}", priority="secondary" if index else "primary", threads=1,
                )  # fmt: skip
            runtime.start()
            window = coordinate()
            runtime.wait()
    else:
        threads = [threading.Thread(target=train, args=(index,)) for index in range(len(kinds))]
        for thread in threads:
            thread.start()
        window = coordinate()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return [clock.figures(*window) for clock in clocks]


@contextlib.contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """Runs NVIDIA's MPS meanwhile, in a folder of its own; yields its clients' environment. RuntimeError: why not."""
    if shutil.which(MPS_CONTROL) is None:
        raise RuntimeError(f"skipped: there is no {MPS_CONTROL}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = dict(os.environ)
        for what in ("PIPE", "LOG"):
            environment[f"CUDA_MPS_{what}_DIRECTORY"] = f"{folder}/{what.lower()}"
            Path(folder, what.lower()).mkdir()
        said = Path(folder, "said")  # a file, for the daemon keeps what it inherits open
        try:
            with said.open("w") as log:
                done = subprocess.run([MPS_CONTROL, "-d"], env=environment, stdout=log, stderr=log, timeout=20)
            if done.returncode != 0:
                raise RuntimeError(f"skipped: {MPS_CONTROL} -d does not start: {said.read_text().strip()}")
            yield environment
        finally:
            with said.open("a") as log:
                subprocess.run([MPS_CONTROL], input=b"quit\n", env=environment, stdout=log, stderr=log, timeout=20)


def measure(kinds: list[str], mode: str, setting: Setting) -> list[Figures]:
    """The figures of each job in that mode. RuntimeError, OSError or SubprocessError: why there are none."""
    groups = [[kind] for kind in kinds] if mode in (TWO, MPS) else [kinds]
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(multi_process_service()) if mode == MPS else dict(os.environ)
        children = []
        for group in groups:
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, __file__, "--work", json.dumps([group, mode, asdict(setting)])]
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            stack.callback(child.kill)
            children.append((child, errors))
        return collect(children, setting)


def collect(children: list[tuple[subprocess.Popen[str], Any]], setting: Setting) -> list[Figures]:
    """Waits until all are ready, tells them the window, and joins the lists that they print."""
    found: list[Figures] = []
    for child, errors in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RuntimeError(f"ended with {child.wait(setting.limit)}: {tail(errors)}")
    start = time.monotonic() + LEAD_S
    for child, _ in children:
        assert child.stdin is not None
        child.stdin.write(json.dumps([start, start + setting.window]) + "\n")
        child.stdin.flush()
    for child, errors in children:
        output, _ = child.communicate(timeout=setting.limit)
        if child.returncode != 0:
            raise RuntimeError(f"ended with {child.returncode}: {tail(errors)}")
        found += json.loads(output.splitlines()[-1])
    return found


def tail(errors: Any) -> str:
    """The last that a child wrote to its standard error: its exception, or where it hung."""
    errors.seek(0)
    return str(errors.read().strip()[-2000:])


def gpu() -> str:
    """The GPU's name and driver; asked of nvidia-smi, for torch would open a context here and keep it."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() if shutil.which(command[0]) else ""


def repeat(pair: str, modes: list[str], setting: Setting) -> dict[str, Outcome]:
    """One repetition of a pair: each job alone, then every mode."""

    def attempt(kinds: list[str], mode: str) -> Outcome:
        try:
            return measure(kinds, mode, setting)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            print(f"{pair} {setting.dtype} {mode}: {error}", file=sys.stderr)
            return {"error": str(error)}

    kinds = list(PAIRS[pair])
    alone = {kind: attempt([kind], "alone") for kind in dict.fromkeys(kinds)}
    failed = [outcome for outcome in alone.values() if isinstance(outcome, dict)]
    outcomes: dict[str, Outcome] = {"alone": failed[0] if failed else [alone[kind][0] for kind in kinds]}
    for mode in modes:
        if mode not in ("alone", "in-turn"):
            outcomes[mode] = attempt(kinds[:1] if mode == SOLO else kinds, mode)
    return outcomes


def relative(repetition: dict[str, Outcome], mode: str) -> list[float] | None:
    """The jobs' rates over those alone; None where one of the two is not known."""
    alone, shared = repetition["alone"], repetition.get(mode)
    if not isinstance(alone, list) or not isinstance(shared, list):
        return None
    return [there["rate"] / here["rate"] for there, here in zip(shared, alone, strict=False)]


def summary(repetitions: list[dict[str, Outcome]]) -> dict[str, Any]:
    """Figures per mode over the repetitions in which it and the jobs alone did not fail."""
    found: dict[str, Any] = {}
    for mode in repetitions[0]:
        runs = [(r, rates) for r in repetitions if (rates := relative(r, mode)) is not None]
        if not runs:
            errors = [o["error"] for r in repetitions for o in (r[mode], r["alone"]) if isinstance(o, dict)]
            found[mode] = {"error": errors[0]}
            continue
        slowdown = spread([1 / rates[0] for _, rates in runs])
        figures: dict[str, Any] = {"repetitions": len(runs), "primary_slowdown": slowdown}
        for index, job in zip(range(len(runs[0][1])), ("primary", "secondary"), strict=False):
            for name in ("rate", "step_ms", "p99_ms"):
                figures[f"{job}_{name}"] = spread([r[mode][index][name] for r, _ in runs])
        if mode not in ("alone", SOLO):
            figures["secondary_share"] = spread([b for _, (_, b) in runs])
            figures["aggregate"] = spread([sum(rates) for _, rates in runs])
            versus = [sum(rates) / sum(two) for r, rates in runs if (two := relative(r, TWO))]
            figures |= {"vs_processes": spread(versus)} if versus else {}
        found[mode] = figures
    one = spread([1.0])  # while the primary runs, the secondary waits
    found["in-turn"] = {"primary_slowdown": one, "secondary_share": spread([0.0]), "aggregate": one}
    return found


def targets(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each target: the mode that comes nearest, its number, and whether that is enough."""

    def medians(mode: str, figure: str) -> list[tuple[float, str]]:
        """Of that mode, with the pair, wherever it was measured; the least first."""
        return sorted((m[mode][figure]["median"], pair) for pair, m in summaries.items() if figure in m.get(mode, {}))

    def line(target: str, found: list[tuple[float, str]]) -> str:
        """From (by how much it is missed, at most 0 where it is reached; what was found) of each candidate."""
        missed, what = min(found, default=(0.0, ""))
        return f"{target}: " + (f"{'reached' if missed <= 0 else 'NOT reached'}: {what}" if what else "not measured")

    lines = []
    for pair in (pair for pair in summaries if pair.startswith(TARGET_PAIR)):
        found = []
        for mode, figures in summaries[pair].items():
            if mode in OURS and "error" not in figures:
                slowdown, share = figures["primary_slowdown"]["median"], figures["secondary_share"]["median"]
                found.append((max(slowdown - MAX_SLOWDOWN, MIN_SHARE - share), f"{mode} {slowdown:.3f}, {share:.2f}"))
        lines.append(line(f"primary <= {MAX_SLOWDOWN} while secondary keeps >= {MIN_SHARE:.2f} on {pair}", found))
    ratios = {mode: medians(mode, "vs_processes") for mode in OURS}
    everywhere = {mode: each[0] for mode, each in ratios.items() if len(each) == len(medians(TWO, "aggregate")) > 0}
    found = [
        (1 - least, f"{mode} {least:.2f} times, at worst, on {pair}") for mode, (least, pair) in everywhere.items()
    ]
    lines.append(line("aggregate >= two processes on every pair", found))
    found = [
        (most - 1 - MAX_OVERHEAD, f"{most - 1:.1%}, at worst, on {pair}")
        for most, pair in medians(SOLO, "primary_slowdown")[-1:]
    ]
    return [*lines, line(f"solo overhead <= {MAX_OVERHEAD:.0%}", found)]


def table(name: str, modes: dict[str, Any]) -> Table:
    columns = {
        "primary slowdown": ("primary_slowdown", 3), "secondary share": ("secondary_share", 2),
        "aggregate": ("aggregate", 2), "vs processes": ("vs_processes", 2),
        "primary ms": ("primary_step_ms", 2), "p99 ms": ("primary_p99_ms", 2),
        "secondary ms": ("secondary_step_ms", 2), "p99  ms": ("secondary_p99_ms", 2),
    }  # fmt: skip
    drawn = Table("mode", *columns, title=name)
    for mode, figures in modes.items():
        cells = [shown(figures[key], digits) if key in figures else "-" for key, digits in columns.values()]
        drawn.add_row(mode, *(["failed"] if "error" in figures else cells))
    return drawn


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
    parser.add_argument("--output", type=Path, default=RESULTS / "h200", help="folder of pairs.json")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        kinds, mode, setting = json.loads(arguments.work)
        faulthandler.dump_traceback_later(setting["limit"], exit=True)
        warnings.simplefilter("ignore")
        print(json.dumps(work(kinds, mode, Setting(**setting))))
        return
    raw: dict[str, list[dict[str, Outcome]]] = {}
    summaries: dict[str, dict[str, Any]] = {}

    def measure_and_write(name: str) -> None:
        """After each pair, so that what is cut short leaves what it had."""
        pair, dtype = name.split()
        setting = Setting(dtype, arguments.device, arguments.tiny, arguments.window, arguments.limit)
        raw.setdefault(name, []).append(repeat(pair, arguments.modes, setting))
        summaries[name] = summary(raw[name])
        write("pairs", {"gpu": gpu(), "summary": summaries, "repetitions": raw}, arguments.output)

    names = [f"{pair} {dtype}" for pair in arguments.pairs for dtype in arguments.dtypes]
    interleaved(names, arguments.repetitions, measure_and_write)
    for name, modes in summaries.items():
        print_table(table(name, modes))
    print("", *targets(summaries), sep="\n")


if __name__ == "__main__":
    main()
