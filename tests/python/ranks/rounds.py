"""Run by torchrun: pairs of DDP jobs with start delays and sub-batches that differ between ranks, and cancellations,
must never deadlock. `rounds.py N`."""

import random
import sys
import time

import torch
import torch.distributed as dist
from lines import line
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchshare
from torchshare.context.rank import this_rank
from torchshare.runtime import ranks

ranks._LEAVE_S = 1.0  # how long a rank waits for one whose job was cancelled before the rendezvous
RANK = this_rank().number
alike, own = random.Random(0), random.Random(1 + RANK)


def train(job, delay: float, steps: int) -> None:
    time.sleep(delay)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sub_batch = own.randint(1, 12)
    for batch in job.batches([torch.randn(12, 8) for _ in range(steps)], sub_batch=sub_batch):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(own.random() * 0.004)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(gathered, weights)
    assert torch.equal(*gathered)


def one_round(number: int) -> None:
    policy = alike.choice(["priority", "strict", "best_fit"])
    start = alike.choice(["now", "auto", "step:5", "after:a", 0.05])
    cancelled_on, cancel_after = alike.choice([None, 0, 1]), alike.random() * 0.3
    with torchshare.Runtime(device="cpu", policy=policy, max_slowdown=alike.choice([None, 0.1])) as runtime:
        steps = alike.randint(5, 30)
        runtime.submit(lambda job: train(job, own.random() * 0.1, steps), name="a", priority="primary")
        b = runtime.submit(lambda job: train(job, own.random() * 0.1, steps), name="b", start=start)
        runtime.start()
        if cancelled_on == RANK:
            time.sleep(cancel_after)
            b.cancel()
        results = runtime.wait(timeout=300)
    assert results["a"].state == "finished", results
    assert results["b"].state == "finished" or cancelled_on is not None, results
    if RANK == 0:
        line(f"round {number}: {policy}, {start}, cancelled on {cancelled_on}: {results['b'].state}")


for number in range(int(sys.argv[1])):
    one_round(number)
