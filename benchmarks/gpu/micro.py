"""Small figures of one GPU that explain the large ones, each measured in a process of its own.

- marks: microseconds of a tiny kernel, launch to end, while another thread records markers in its stream, as a waiting
  job does, and what a marker takes that thread.
- priority: latency of a tiny kernel of the primary beside a secondary whose kernels fill the device, with and without
  the device's priorities.
- launches: tiny kernels per second of one thread, two threads, two jobs and two processes.
- sms: milliseconds of a matrix product on parts of the multiprocessors (`job.on_sms`).
- empty_cache: how much longer a primary's step takes during `torch.cuda.empty_cache()` of the other.
- first_step: of a job that is submitted beside a running one, and in a fresh process.

The modes of a figure take turns. Writes micro.json after each figure; one that fails is in there with its error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))

from child import Child

import torchshare
from torchshare import _C

from record import RESULTS, interleaved, parser, shown, spread, write
from training import Training

LEAD_S = 0.2  # until a window of two processes, which are warm
PATIENCE_S = 30.0  # until a thread that others wait for has loaded its libraries
BURST = 50  # launches between two looks at the clock
MARKS = 1000
REST_S = 1e-3  # between two kernels whose latency counts
PRODUCTS = 10  # matrix products of one measurement
EMPTY_EVERY_S = 0.02
CACHED_BYTES = 64 << 20  # what there is to give back when the cache is emptied
RUNNING, SECOND = "resnet18-128", "bert-8"  # trainings: the one that runs, and the one that is submitted beside it
STEPS = 6  # of the second training
Figures = dict[str, float]
Function = Callable[[], Any]
Open = Callable[[], float]  # waits for the window of a measurement; returns when it ends, in time.monotonic()


@dataclass(frozen=True)
class Setting:
    """What all figures have in common. `limit`: seconds until one is given up."""

    device: str
    tiny: bool
    window: float
    repetitions: int
    limit: float

    @property
    def rows(self) -> int:
        """Of the matrices that are multiplied: on a GPU, a product fills it for milliseconds."""
        return 64 if self.tiny else 4096

    def window_of(self, threads: int) -> Open:
        """A window that begins when so many threads wait for it."""
        ends: list[float] = []
        barrier = threading.Barrier(threads, lambda: ends.append(time.monotonic() + self.window), PATIENCE_S)

        def wait() -> float:
            barrier.wait()
            return ends[0]

        return wait

    def done(self) -> None:
        """Waits for this thread's work on the device."""
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()


def in_turns(modes: Mapping[str, Callable[[], Figures]], repetitions: int, compared: str = "") -> dict[str, Any]:
    """The figures of each mode, measured in turns; `compared` also over that of the first mode in the same turn."""
    turns = interleaved(modes, repetitions, lambda name: modes[name]())
    first, *_ = turns
    found: dict[str, Any] = {}
    for name, figures in turns.items():
        found[name] = {figure: spread([turn[figure] for turn in figures]) for figure in figures[0]}
        if compared and name != first:
            ratios = [own[compared] / base[compared] for own, base in zip(figures, turns[first], strict=True)]
            found[name][f"{compared}_over_{first}"] = spread(ratios)
    return found


def in_threads(setting: Setting, *functions: Function) -> list[Any]:
    """Their results. Each runs in a thread, on a stream of its own, in plain torch."""

    def run(function: Function) -> Any:
        with torch.cuda.stream(torch.cuda.Stream() if setting.device == "cuda" else None):
            return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


def in_jobs(setting: Setting, *functions: Function, **options: Any) -> list[Any]:
    """Their results. Each runs as a job, the first as the primary."""
    with torchshare.Runtime(device=setting.device, **options) as runtime:
        for number, function in enumerate(functions):
            rank = "secondary" if number else "primary"
            runtime.submit(lambda _job, run=function: run(), name=f"{number}", priority=rank, threads=1)
        return [result.value for result in runtime.wait().values()]


def launched(setting: Setting, window: Open) -> int:
    """How many tiny kernels this thread launches in the window, one after the other."""
    x = torch.ones(1, device=setting.device).add_(1)
    setting.done()
    count, end = 0, window()
    while not count or time.monotonic() < end:
        for _ in range(BURST):
            x.add_(1)
        setting.done()
        count += BURST
    return count


def marks(setting: Setting) -> dict[str, Any]:
    def measure(kind: str) -> Figures:
        window = setting.window_of(1 if kind == "none" else 2)
        stream = torch.cuda.Stream()

        def launch() -> Figures:
            with torch.cuda.stream(stream):
                return {"launch_us": 1e6 * setting.window / launched(setting, window)}

        def mark() -> Figures:
            puts: list[float] = []
            end = window()
            with torch.cuda.stream(stream):
                while not puts or time.monotonic() < end:
                    puts.append(_C.measure_marker_cost(kind, MARKS)[0])
            return {"put_us": 1e6 * float(np.median(puts)), "marks_per_s": MARKS * len(puts) / setting.window}

        functions = [launch] if kind == "none" else [launch, mark]
        found: Figures = {}
        for figures in in_threads(setting, *functions):
            found |= figures
        return found

    return in_turns(
        {kind: partial(measure, kind) for kind in ("none", "write", "event")}, setting.repetitions, "launch_us"
    )


def latencies(setting: Setting, window: Open) -> Figures:
    """Microseconds from before the launch of a tiny kernel until it is seen to be done, at the median and at p99."""
    x = torch.ones(1, device=setting.device).add_(1)
    setting.done()
    times = []
    end = window()
    while not times or time.monotonic() < end:
        time.sleep(REST_S)
        launch = time.perf_counter()
        x.add_(1)
        setting.done()
        times.append(1e6 * (time.perf_counter() - launch))
    median, p99 = np.percentile(times, [50, 99])
    return {"median_us": float(median), "p99_us": float(p99)}


def multiplied(setting: Setting, window: Open) -> int:
    """How many products of large matrices end in the window. One is always launched behind the one that runs."""
    x = torch.randn(setting.rows, setting.rows, device=setting.device)
    product = x @ x
    setting.done()
    count, before, end = 0, None, window()
    while time.monotonic() < end:
        torch.mm(x, x, out=product)
        mark = torch.cuda.current_stream().record_event() if setting.device == "cuda" else None
        if before is not None:
            before.synchronize()
        before = mark
        count += 1
    return count


def priority(setting: Setting) -> dict[str, Any]:
    def measure(*others: Callable[..., int], how: str = "auto") -> Figures:
        window = setting.window_of(1 + len(others))
        functions = [partial(each, setting, window) for each in (latencies, *others)]
        found, *beside = in_jobs(setting, *functions, device_priority=how)
        if beside:
            found["products_per_s"] = beside[0] / setting.window
        return dict(found)

    modes = {
        "alone": measure,
        "beside, priorities": partial(measure, multiplied),
        "beside, no priorities": partial(measure, multiplied, how="none"),
    }
    return in_turns(modes, setting.repetitions, "p99_us")


def launches(setting: Setting) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(Child(__file__, ["launching_process", asdict(setting)])) for _ in range(2)]
        for process in processes:
            process.hear()  # it is ready

        def by(run: Callable[..., list[int]], count: int) -> Figures:
            threads = [partial(launched, setting, setting.window_of(count))] * count
            return {"per_second": sum(run(setting, *threads)) / setting.window}

        def by_processes() -> Figures:
            begin = time.monotonic() + LEAD_S
            for process in processes:
                process.tell(begin)
            return {"per_second": sum(process.hear() for process in processes) / setting.window}

        modes = {
            "one thread": partial(by, in_threads, 1),
            "two threads": partial(by, in_threads, 2),
            "two jobs": partial(by, in_jobs, 2),
            "two processes": by_processes,
        }
        return in_turns(modes, setting.repetitions, "per_second")


def launching_process(setting: Setting) -> None:
    """A process that launches in each window whose begin it is told."""

    def window() -> float:
        begin = float(json.loads(input()))
        time.sleep(max(0.0, begin - time.monotonic()))
        return begin + setting.window

    with contextlib.suppress(EOFError):
        launched(setting, time.monotonic)
        print(json.dumps("ready"), flush=True)
        while True:
            print(json.dumps(launched(setting, window)), flush=True)


def sms(setting: Setting) -> dict[str, Any]:
    whole = torch.cuda.get_device_properties(0).multi_processor_count

    def in_parts(job: torchshare.Job) -> dict[str, Any]:
        x = torch.randn(setting.rows, setting.rows, device=setting.device)
        product = torch.empty_like(x)

        def multiply(count: int) -> float:
            """Seconds that so many products take."""
            begin = time.perf_counter()
            for _ in range(count):
                torch.mm(x, x, out=product)
            setting.done()
            return time.perf_counter() - begin

        def measure(part: int | None) -> Figures:
            with contextlib.nullcontext(whole) if part is None else job.on_sms(part) as granted:
                multiply(1)  # loads a library, or makes the part
                return {"sms": granted, "product_ms": 1e3 * multiply(PRODUCTS) / PRODUCTS}

        parts = {f"{quarters}/4": partial(measure, whole * quarters // 4) for quarters in (1, 2, 3, 4)}
        return in_turns({"all": partial(measure, None), **parts}, setting.repetitions, "product_ms")

    with torchshare.Runtime(device=setting.device) as runtime:
        runtime.submit(in_parts, name="sms", threads=1)
        return dict(runtime.wait()["sms"].value)


Spans = list[tuple[float, float]]  # begin and end of each


def stalls(steps: Spans, calls: Spans) -> Figures:
    """How much longer the longest step takes that a call falls into than one without a call, in ms: the median and the
    most over all calls. A call between two steps stalls none. RuntimeError: there is no step without a call, or no
    call."""
    begins, ends = np.array(steps).reshape(-1, 2).T
    inside = np.array([(ends > begin) & (begins < end) for begin, end in calls])
    if not calls or inside.any(axis=0).all():
        raise RuntimeError(f"expected calls, and steps without a call, got {len(calls)} calls in {len(steps)} steps")
    quiet = np.median((ends - begins)[~inside.any(axis=0)])
    stalled = [1e3 * float(((ends - begins)[hit] - quiet).max(initial=0.0)) for hit in inside]
    return {
        "step_ms": 1e3 * float(quiet),
        "stall_ms": float(np.median(stalled)),
        "stall_max_ms": max(stalled),
        "call_ms": 1e3 * float(np.median([end - begin for begin, end in calls])),
    }


def empty_cache(setting: Setting) -> dict[str, Any]:
    def measure(run: Callable[..., list[Any]]) -> Figures:
        window = setting.window_of(2)

        def steps() -> Spans:
            x = torch.randn(setting.rows // 4, setting.rows // 4, device=setting.device)
            torch.mm(x, x)
            setting.done()
            spans = []
            end = window()
            while time.monotonic() < end:
                start = time.monotonic()
                for _ in range(PRODUCTS):
                    torch.mm(x, x)
                setting.done()
                spans.append((start, time.monotonic()))
            return spans

        def empties() -> Spans:
            spans = []
            end = window()
            while time.monotonic() < end:
                torch.ones(CACHED_BYTES, dtype=torch.uint8, device=setting.device)
                setting.done()
                time.sleep(EMPTY_EVERY_S)  # steps beside the allocation end before the call
                start = time.monotonic()
                torch.cuda.empty_cache()
                spans.append((start, time.monotonic()))
            return spans

        return stalls(*run(setting, steps, empties))

    modes = {"two threads": partial(measure, in_threads), "two jobs": partial(measure, in_jobs)}
    return in_turns(modes, setting.repetitions)


class StepTimes:
    """Notes the end of each of so many steps."""

    def __init__(self, setting: Setting) -> None:
        self.ends: list[float] = []
        self._setting = setting

    def step_done(self) -> bool:
        self._setting.done()
        self.ends.append(time.perf_counter())
        return len(self.ends) < STEPS


class Endless:
    """Ends a training once `over`."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def step_done(self) -> bool:
        return not self._over.is_set()


def trained(setting: Setting, job: torchshare.Job | None = None) -> Figures:
    """Milliseconds to build the second training, for its first step and for one of its later steps."""
    times = StepTimes(setting)
    begin = time.perf_counter()
    training = Training(SECOND, setting.device, torch.float32, setting.tiny)
    setting.done()
    built = time.perf_counter()
    training.run(times, job)
    first, *later = 1e3 * np.diff([built, *times.ends])
    build_ms = 1e3 * (built - begin)
    return {"build_ms": build_ms, "first_step_ms": float(first), "later_step_ms": float(np.median(later))}


def training_process(setting: Setting, beside: bool) -> None:
    """A process with the second training alone, or as the second job beside a running one."""
    print(json.dumps("ready"), flush=True)
    if not beside:
        print(json.dumps(trained(setting)), flush=True)
        return
    over = threading.Event()

    def second(job: torchshare.Job) -> Figures:
        try:
            return trained(setting, job)
        finally:
            over.set()

    def running(job: torchshare.Job) -> None:
        Training(RUNNING, setting.device, torch.float32, setting.tiny).run(Endless(over), job)

    with torchshare.Runtime(device=setting.device) as runtime:
        runtime.submit(running, name=RUNNING, priority="primary", threads=1)
        runtime.submit(second, name=SECOND, start="step:5", threads=1)
        print(json.dumps(runtime.wait()[SECOND].value), flush=True)


def first_step(setting: Setting) -> dict[str, Any]:
    def measure(beside: bool) -> Figures:
        begin = time.perf_counter()
        with Child(__file__, ["training_process", asdict(setting), beside]) as child:
            child.hear()  # it is ready
            import_ms = 1e3 * (time.perf_counter() - begin)
            return {**({} if beside else {"import_ms": import_ms}), **child.hear()}

    modes = {"fresh process": partial(measure, False), "second job": partial(measure, True)}
    return in_turns(modes, setting.repetitions, "first_step_ms")


FIGURES = {each.__name__: each for each in (marks, priority, launches, sms, empty_cache, first_step)}
OF_A_GPU = {"marks", "sms", "empty_cache"}
PROCESSES = {each.__name__: each for each in (launching_process, training_process)}


def main() -> None:
    options = parser(__doc__, repetitions=3, window=0.4)
    options.set_defaults(output=RESULTS / "gpu")
    options.add_argument("--figures", nargs="+", choices=FIGURES, help="default: all that the device has")
    options.add_argument("--limit", type=float, default=60.0, help="seconds until a figure is given up")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--tiny", action="store_true", help="small matrices and models, to see whether it runs")
    arguments = options.parse_args()
    if arguments.work:
        name, given, *rest = json.loads(arguments.work)
        setting = Setting(**given)
        faulthandler.dump_traceback_later(setting.limit, exit=True)
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        if name in PROCESSES:
            PROCESSES[name](setting, *rest)
        else:
            print(json.dumps(FIGURES[name](setting)))
        return
    setting = Setting(arguments.device, arguments.tiny, arguments.window, arguments.repetitions, arguments.limit)
    figures = arguments.figures or [name for name in FIGURES if setting.device == "cuda" or name not in OF_A_GPU]
    found: dict[str, Any] = {}
    for name in figures:
        with Child(__file__, [name, asdict(setting)]) as child:
            try:
                found[name] = child.hear()
            except RuntimeError as error:
                found[name] = {"error": str(error)}
        write("micro", found, arguments.output)
        for mode, measured in found[name].items():
            cells = measured if mode == "error" else "  ".join(f"{key} {shown(each)}" for key, each in measured.items())
            print(f"{name}: {mode}: {cells}")
    if failed := [name for name in figures if "error" in found[name]]:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
