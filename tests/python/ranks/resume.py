"""Run by torchrun: a DDP job is stopped and resumes on both ranks, from the newest step that both have."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lines import line
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torchshare
from torchshare.context.rank import this_rank

FOLDER = Path(sys.argv[1])
RANK = this_rank().number


def trainer(stop: int):
    def train(job) -> list[torch.Tensor]:
        dist.init_process_group("gloo")
        torch.manual_seed(5 + RANK)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = TensorDataset(torch.arange(480.0).reshape(80, 6) / 480, torch.arange(80) % 3)
        sampler = DistributedSampler(data)
        loader = DataLoader(data, 8, sampler=sampler)
        job.track(model=model, optimizer=optimizer, loader=loader)
        steps = 0
        for epoch in job.epochs(4):
            sampler.set_epoch(epoch)
            for batch in job.batches(loader):
                batch.backward(lambda x, y: nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                if steps == stop:
                    raise RuntimeError("stopped")
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        dist.destroy_process_group()
        return weights

    return train


def run(stop: int, **options) -> list[torch.Tensor]:
    with torchshare.Runtime(device="cpu", **options) as runtime:
        runtime.submit(trainer(stop), name="a", threads=1)
        return runtime.wait(check=False)["a"].value


whole = run(-1)
kept = {"checkpoint": FOLDER, "every": 3, "resume": True}
run(14, **kept)
end = ".pt" if RANK == 0 else f".rank{RANK}.pt"
own = sorted(
    path.name for path in FOLDER.iterdir() if path.name.count(".") == end.count(".") + 1 and path.name.endswith(end)
)
line(f"kept: {own == [f'a.{step:08}{end}' for step in (6, 9, 12)]}")
if RANK == 1:
    (FOLDER / f"a.00000012{end}").unlink()
resumed = run(-1, **kept)
line(f"identical: {all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))}")
try:
    torchshare.Runtime(device="cpu", checkpoint=FOLDER)
except ValueError as error:
    line(str(error))
os._exit(0)  # torch 2.11 may abort at exit
