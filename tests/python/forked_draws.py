"""A program that draws random numbers in processes that it forks. Run with a seed, it prints them."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import threading
import warnings
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset


def draws(*_: object) -> list[Any]:
    """The last one leaves half of a pair of numbers for the next."""
    return [torch.rand(2).tolist(), torch.initial_seed(), numpy.random.rand(), numpy.random.randn()]


class Draws(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), random.random(), numpy.random.rand()])


def fork(depth: int = 1) -> str:
    """What a child draws, and with `depth` its own child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, f"{draws()} {fork(depth - 1) if depth > 1 else ''}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    return text


def everything(seed: int) -> list[Any]:
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)
    context = multiprocessing.get_context("fork")
    found: list[Any] = [draws(), fork(), fork(2)]
    mine, other = context.Pipe()
    process = context.Process(target=lambda: other.send(draws()))
    process.start()
    found.append(mine.recv())
    process.join()
    with context.Pool(1) as pool:
        found.append(pool.map(draws, [0, 1]))
    thread = threading.Thread(target=lambda: found.append(fork()))
    thread.start()
    thread.join()
    found += [batch.tolist() for batch in DataLoader(Draws(), num_workers=1)]
    numpy.random.set_bit_generator(numpy.random.PCG64(seed))
    found += [draws(), fork()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        found.append(fork())
    expected = random.Random(seed).random()
    mine, other = context.Pipe()
    process = context.Process(target=lambda: other.send(random.random() == expected))
    process.start()
    return [*found, mine.recv(), process.join(), random.random() == expected, draws()]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)  # one fork is beside a thread
    print(everything(int(sys.argv[1])))
