"""Measures deadlines: which sets of periodic jobs are accepted, and how a camera keeps its deadlines beside a training.

`deadlines.py sets`, in virtual time: for each utilization, random sets of 4 periodic jobs (UUniFast; deadlines of half
the period to the period) beside a training with ops of one length, on one core. "accepted" is what admission says,
"met" the share of sets that miss no deadline in 3 s. Deadline-monotonic priorities and the policies without deadlines
are only replayed.

`deadlines.py camera`, on the CPU: a job of 30 Hz beside a training, in one process under several policies and in two
processes, interleaved; each run is a fresh process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from torchshare import _core

from record import interleaved, parser, shown, spread, write

OVERHEAD_S = _core.unit_overhead_s()
UNTIL_S = 3.0
OP_S = 0.005  # of the training
Task = tuple[float, float, float, float]

PERIOD_S, DEADLINE_S = 1 / 30, 0.025


def random_set(utilization: float, source: random.Random, count: int = 4) -> list[tuple[Task, int, float]]:
    """Tasks (period, deadline, cost, longest op), their number of ops and first releases, in seconds."""
    tasks = []
    left = utilization
    for index in range(count):
        rest = left * source.random() ** (1 / (count - 1 - index)) if index + 1 < count else 0.0
        period = 0.01 * 20 ** source.random()
        cost = max((left - rest) * period, 1e-5)
        deadline = max(cost, period * source.uniform(0.5, 1))
        ops = source.randint(1, 5)
        tasks.append(((period, deadline, cost, cost / ops), ops, period * source.random()))
        left = rest
    return tasks


def figures(tasks: list[tuple[Task, int, float]]) -> dict[str, float]:
    """Per way: 1 if the set is accepted or met."""
    times = [(*task[:2], task[2] + OVERHEAD_S, task[3]) for task, *_ in tasks]
    allowed = _core.demand_bound(times).blocking_allowed_s - OVERHEAD_S / 2

    def missed(policy: str, priorities: list[str]) -> int:
        replayed = [(task, ops, level, first) for (task, ops, first), level in zip(tasks, priorities, strict=True)]
        return _core.replay_periodic(replayed, [OP_S], policy, max(allowed, 0.0), UNTIL_S).missed

    equal = ["primary"] * len(tasks)
    order = sorted(range(len(tasks)), key=lambda index: tasks[index][0][1])
    monotonic = [f"level-{order.index(index)}" for index in range(len(tasks))]
    edf = missed("edf", equal)
    assert allowed < 0 or edf == 0, "an accepted set has missed a deadline"
    return {
        "accepted, release-aware": float(allowed >= 0),
        "accepted, edf": float(allowed >= OP_S),
        "met, edf": float(edf == 0),
        "met, deadline-monotonic": float(missed("strict", monotonic) == 0),
        "met, strict": float(missed("strict", equal) == 0),
        "met, no gate": float(missed("priority", equal) == 0),
    }


def sets(count: int) -> dict[str, Any]:
    source = random.Random(1)
    utilizations = [round(0.1 * step, 1) for step in range(1, 11)]
    rows: dict[str, list[float]] = {}
    for utilization in utilizations:
        found = [figures(random_set(utilization, source)) for _ in range(count)]
        for way in found[0]:
            rows.setdefault(way, []).append(sum(each[way] for each in found) / count)
    width = max(map(len, rows))
    print(f"{'utilization':{width}}", *(f"{value:6.1f}" for value in utilizations))
    for way, shares in rows.items():
        print(f"{way:{width}}", *(f"{share:6.2f}" for share in shares))
    return {"utilizations": utilizations, "sets": count, "op_s": OP_S, "share_of_sets": rows}


def draw(found: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for way, shares in found["share_of_sets"].items():
        axes.plot(
            found["utilizations"], shares, marker="o", linestyle="-" if way.startswith("met") else "--", label=way
        )
    axes.set(xlabel="utilization of 4 periodic jobs", ylabel="share of the sets", ylim=(-0.03, 1.03))
    axes.set_title(f"Beside a training with ops of {1e3 * OP_S:.0f} ms, one core, virtual time")
    axes.legend(fontsize=8)
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


def camera_model() -> Any:
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(20))).eval()


def camera(seconds: float) -> None:
    import torch

    import torchshare

    model, frame = camera_model(), torch.randn(64, 256)
    with torch.no_grad():
        for _ in range(20):  # a warm-up
            model(frame)
        for _ in torchshare.periods(range(int(seconds / PERIOD_S)), period=PERIOD_S, deadline=DEADLINE_S):
            model(frame)


def kept(periods: Any) -> dict[str, float]:
    """How a camera kept its deadlines."""
    units = periods.met + periods.missed + periods.skipped
    return {"missed": (periods.missed + periods.skipped) / units, "response_p99_ms": 1e3 * periods.response.p99}


def train(has_ended: Any) -> int:
    """Returns the steps until then."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(25088, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch, steps = torch.randn(16, 3, 32, 32), 0
    while not has_ended():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def warm_up() -> None:
    left = iter(range(20))
    train(lambda: next(left, None) is None)


def shared(policy: str, priority: str, seconds: float) -> dict[str, float]:
    import threading

    import torchshare

    done, began = threading.Event(), threading.Event()

    def run_camera(_: Any) -> None:
        assert began.wait(60)
        camera(seconds)
        done.set()

    def run_training(_: Any) -> int:
        warm_up()
        began.set()
        return train(done.is_set)

    with torchshare.Runtime("cpu", policy=policy, device_priority=priority) as runtime:
        runtime.submit(run_camera, name="camera", priority="primary", threads=1)
        runtime.submit(run_training, name="training", threads=1)
        results = runtime.wait()
    return {**kept(results["camera"].periods), "steps_per_s": results["training"].value / seconds}


def alone(seconds: float) -> dict[str, float]:
    import torchshare

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(lambda _: camera(seconds), name="camera", threads=1)
        return kept(runtime.wait()["camera"].periods)


def processes(how: str, seconds: float) -> dict[str, float]:
    """A camera in this process, in a runtime of its own for its figures, beside a training in another, which is counted
    from the camera's start to its end."""
    import torchshare

    command = [sys.executable, __file__, "training"]
    prefix = {"plain": [], "nice": ["nice", "-n", "19"], "idle": ["chrt", "--idle", "0"]}[how]
    torchshare.Runtime("cpu").close()  # imports what it needs
    with subprocess.Popen([*prefix, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "ready\n"
        other.stdin.write("begin\n")
        other.stdin.flush()
        found = alone(seconds)
        other.stdin.close()
        return {**found, "steps_per_s": float(other.stdout.readline()) / seconds}


def training() -> None:
    """The other process: trains from a line on standard input to its end, and prints the number of steps."""
    import threading

    import torch

    torch.set_num_threads(1)
    warm_up()
    print("ready", flush=True)
    sys.stdin.readline()
    ended = threading.Event()
    threading.Thread(target=lambda: [sys.stdin.read(), ended.set()], daemon=True).start()
    print(train(ended.is_set))


WAYS = {
    "alone": lambda seconds: alone(seconds),
    "two processes": lambda seconds: processes("plain", seconds),
    "two processes, nice 19": lambda seconds: processes("nice", seconds),
    "two processes, SCHED_IDLE": lambda seconds: processes("idle", seconds),
    "edf, idle": lambda seconds: shared("edf", "idle", seconds),
    "edf, none": lambda seconds: shared("edf", "none", seconds),
    "strict, idle": lambda seconds: shared("strict", "idle", seconds),
    "priority, idle": lambda seconds: shared("priority", "idle", seconds),
}


def measured(way: str, seconds: float) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "one", "--way", way, "--window", str(seconds)]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    arguments = parser(__doc__, repetitions=3, window=20.0)
    arguments.add_argument("what", choices=["sets", "camera", "one", "training"])
    arguments.add_argument("--sets", type=int, default=100, help="random sets per utilization")
    arguments.add_argument("--way", help=f"of `one`: {', '.join(WAYS)}")
    given = arguments.parse_args()
    if given.what == "one":
        print(json.dumps(WAYS[given.way](given.window)))
    elif given.what == "training":
        training()
    elif given.what == "sets":
        found = sets(given.sets)
        write("deadlines_sets", found, given.output)
        draw(found, given.output / "deadlines.png")
    else:
        runs = interleaved(WAYS, given.repetitions, lambda way: measured(way, given.window))
        for way, found in runs.items():
            print(way, {name: shown(spread([each[name] for each in found])) for name in found[0]})
        write("deadlines_camera", {"seconds": given.window, "runs": runs}, given.output)


if __name__ == "__main__":
    main()
