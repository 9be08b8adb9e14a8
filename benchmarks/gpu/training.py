"""The training jobs of the GPU benchmarks: what they train, on which batches, and the clock that times their steps."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import torchshare

from jobs import step_through
from models import CLASSES, Recurrent, bert, gpt2, mobilenet, resnet18, resnet50, shufflenet

IMAGE, TINY_IMAGE = 224, 32  # pixels a side
TINY_ROWS = 8  # per batch; a sub-batch of one would be too few for BatchNorm
TINY_TOKENS = 16  # per row
SEED = 0
WARM_UP_STEPS = 5  # of each job, before all go on together


@dataclass(frozen=True)
class Kind:
    """What a job trains."""

    name: str
    batch: int  # rows per step
    make: Callable[[bool], nn.Module]  # True: few small layers, for a look whether it runs
    classes: int = CLASSES
    tokens: int = 0  # per row; 0: rows are images
    per_token: bool = False  # every token has a class, a word
    adam: bool = False  # AdamW instead of SGD with momentum

    def example(self, device: str, tiny: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch: images (rows, 3, pixels, pixels) or words (rows, tokens), and classes (rows,) or (rows, tokens)."""
        rows, tokens = (TINY_ROWS, min(TINY_TOKENS, self.tokens)) if tiny else (self.batch, self.tokens)
        shape = (rows, tokens) if self.per_token else (rows,)
        y = torch.randint(self.classes, shape, device=device)
        if tokens:
            return torch.randint(10_000, (rows, tokens), device=device), y
        side = TINY_IMAGE if tiny else IMAGE
        return torch.randn(rows, 3, side, side, device=device), y


KINDS = {
    kind.name: kind
    for kind in (
        Kind("shufflenet-512", 512, shufflenet),
        Kind("resnet50-4", 4, resnet50),
        Kind("resnet50-128", 128, resnet50),
        Kind("resnet50-256", 256, resnet50),
        Kind("resnet18-128", 128, resnet18),
        Kind("mobilenet-64", 64, mobilenet),
        Kind("lstm-64", 64, Recurrent, classes=10_000, tokens=35, per_token=True),
        Kind("bert-8", 8, bert, classes=2, tokens=128, adam=True),
        Kind("gpt2-1", 1, gpt2, classes=50_257, tokens=256, per_token=True, adam=True),
    )
}


class StepClock:
    """Notes when each step ended on the device, in time.monotonic(); ends the training at a deadline set meanwhile."""

    def __init__(self, device: str, warm: threading.Barrier) -> None:
        self.deadline = math.inf
        self._device, self._warm = device, warm
        self._warm_up = WARM_UP_STEPS
        self._ends: list[float] = []

    def step_done(self) -> bool:
        if self._device == "cuda":
            torch.cuda.current_stream().synchronize()
        if self._warm_up > 0:
            self._warm_up -= 1
            if self._warm_up == 0:
                self._warm.wait()
                self._ends.append(time.monotonic())
            return True
        self._ends.append(time.monotonic())
        return self._ends[-1] < self.deadline

    def figures(self, start: float, end: float) -> dict[str, float]:
        """Steps per second between the two instants, the median step and the 99th percentile in ms."""
        ends = np.array(self._ends)
        first, last = np.interp([start, end], ends, np.arange(len(ends)))
        step_ms = 1e3 * np.diff(ends)[(ends[1:] > start) & (ends[:-1] < end)]
        median, p99 = np.percentile(step_ms, [50, 99])
        return {"rate": float(last - first) / (end - start), "step_ms": float(median), "p99_ms": float(p99)}


class Training:
    """A job of some kind on "cuda" or "cpu": its model, optimizer and one batch, all there and from one seed."""

    def __init__(self, kind: str, device: str, dtype: torch.dtype, tiny: bool = False) -> None:
        self.device, self.dtype = device, dtype
        torch.manual_seed(SEED)
        with torch.device(device):
            self.model = KINDS[kind].make(tiny)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer
        if KINDS[kind].adam:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=device == "cuda")
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        self.example = KINDS[kind].example(device, tiny)
        self.batches: Iterator[tuple[torch.Tensor, torch.Tensor]] = itertools.repeat(self.example)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean over the batch. Under autocast for bfloat16; float32 as torch has it by default."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return F.cross_entropy(self.model(x).flatten(0, -2), y.flatten())

    def run(self, meter: StepClock, job: torchshare.Job | None = None, graph: bool = False) -> None:
        """Trains until `meter` says stop. With `graph`, forward and backward are a CUDA graph that the job replays."""
        loss = job.graph(self.loss) if job is not None and graph else self.loss
        step_through(self.batches if job is None else job.batches(self.batches), loss, self.optimizer, meter)
