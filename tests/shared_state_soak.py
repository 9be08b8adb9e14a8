"""Two jobs do everything at once that touches what they share: import, replace, hook, print, seed, load, fork, start
threads, raise, are interrupted. Each round is a runtime of its own, and at the end of some, both jobs are cancelled.

python tests/shared_state_soak.py --seconds 300
"""

from __future__ import annotations

import argparse
import collections
import copy
import faulthandler
import gc
import importlib
import io
import json
import logging
import pickle
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import torchshare
from torchshare import Job
from torchshare.context import interpreter_lock

ROUND_S = 3.0
PATIENCE_S = 120

Action = Callable[[random.Random], None]
actions: dict[str, Action] = {}


def action(function: Action) -> Action:
    actions[function.__name__] = function
    return function


def _trained(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(5):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


ALONE = [_trained(seed) for seed in range(4)]


@action
def train(chance: random.Random) -> None:
    seed = chance.randrange(len(ALONE))
    for weight, expected in zip(_trained(seed), ALONE[seed], strict=True):
        assert torch.equal(weight, expected), f"seed {seed}: other weights"


@action
def hook_all_modules(chance: random.Random) -> None:
    calls: list[int] = []
    register = chance.choice([torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook])
    handle = register(lambda *_: calls.append(1))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model(torch.ones(1, 2))
    handle.remove()
    model(torch.ones(1, 2))
    assert len(calls) == 3, calls


@action
def hook_parameters(_: random.Random) -> None:
    names: list[str] = []
    handle = torch_module.register_module_parameter_registration_hook(lambda _module, name, _value: names.append(name))
    nn.Linear(2, 2)
    handle.remove()
    nn.Linear(2, 2)
    assert names == ["weight", "bias"], names


@action
def replace_a_function(chance: random.Random) -> None:
    factor = chance.randrange(2, 9)
    original = nn.functional.relu
    nn.functional.relu = lambda x, inplace=False: x * factor
    try:
        assert nn.ReLU()(torch.ones(1)).item() == factor
    finally:
        nn.functional.relu = original
    assert nn.ReLU()(torch.tensor([-1.0])).item() == 0


@action
def change_settings(chance: random.Random) -> None:
    seed = chance.randrange(100)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    drawn = random.random(), float(np.random.rand()), torch.rand(1).item()
    with torch.no_grad(), torch.autocast("cpu"):
        assert (torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).dtype == torch.bfloat16
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    assert drawn == (random.random(), float(np.random.rand()), torch.rand(1).item())


@action
def import_modules(chance: random.Random) -> None:
    name = chance.choice(["json.tool", "colorsys", "sndhdr", "this_is_nowhere", "wave", "xml.dom.minidom", "plistlib"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(name)
        except ImportError:
            assert name in ("this_is_nowhere", "sndhdr")


@action
def save_and_load(_: random.Random) -> None:
    model = nn.LSTM(4, 4)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        each.load_state_dict(torch.load(file))
        file.seek(0)
        assert torch.equal(each.weight_ih_l0, model.weight_ih_l0)


@action
def print_and_log(chance: random.Random) -> None:
    number = chance.random()
    logging.getLogger(f"shared.{number}").info("nothing listens")
    print(json.dumps({"number": number}), file=io.StringIO())
    warnings.warn(f"{number}", stacklevel=1)


@action
def start_threads(_: random.Random) -> None:
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(torch.ones(50).sum().item())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50.0] * 3, found


@action
def run_a_process(chance: random.Random) -> None:
    if chance.random() < 0.1:
        assert subprocess.run(["echo", "here"], capture_output=True, text=True, check=True).stdout == "here\n"


@action
def load_with_workers(chance: random.Random) -> None:
    if chance.random() < 0.05:
        loader = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=1)
        assert sum(int(batch.sum()) for batch in loader) == 28


@action
def collect(chance: random.Random) -> None:
    cycle: list[object] = [torch.ones(3)]
    cycle.append(cycle)
    if chance.random() < 0.2:
        gc.collect()


@action
def raise_errors(_: random.Random) -> None:
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        assert "size" in str(error)


def body(seed: int, until: float, counts: collections.Counter[str]) -> Callable[[Job], str]:
    def run(job: Job) -> str:
        chance = random.Random(seed)
        names = list(actions)
        while time.monotonic() < until:
            name = chance.choice(names)
            actions[name](chance)
            counts[name] += 1
        return job.name

    return run


def one_round(chance: random.Random, counts: list[collections.Counter[str]]) -> None:
    is_cancelled = chance.random() < 0.4
    until = time.monotonic() + ROUND_S * (10 if is_cancelled else 1)
    with torchshare.Runtime(device="cpu", policy=chance.choice(("priority", "strict", "best_fit"))) as runtime:
        jobs = [
            runtime.submit(body(chance.randrange(1 << 30), until, each), name=f"job{index}", threads=1, start="now")
            for index, each in enumerate(counts)
        ]
        runtime.start()
        if is_cancelled:
            time.sleep(chance.random() * ROUND_S)
            for job in jobs:
                job.cancel()
        results = runtime.wait(PATIENCE_S, check=False)
    for job in jobs:
        result = results[job.name]
        expected = "cancelled" if is_cancelled else "finished"
        if result.state != expected:
            raise RuntimeError(f"{job.name} is {result.state}, not {expected}") from result.exception


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, metavar="S")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.getLogger("torchshare").setLevel(logging.ERROR)
    chance = random.Random(arguments.seed)
    counts = [collections.Counter[str](), collections.Counter[str]()]
    end = time.monotonic() + arguments.seconds
    rounds = 0
    while time.monotonic() < end:
        one_round(chance, counts)
        rounds += 1
    total = counts[0] + counts[1]
    print(f"Python {interpreter_lock.described()}: {rounds} rounds of two jobs, {sum(total.values())} actions")
    for name, count in sorted(total.items()):
        print(f"  {name:20} {count}")
    missing = set(actions) - set(total)
    if missing:
        sys.exit(f"never done: {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
