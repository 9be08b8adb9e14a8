"""Run by torchrun: DDP jobs in their own default groups, compared with the same functions without torchshare.
`groups.py cpu|cuda`."""

import gc
import os
import sys

import torch
import torch.distributed as dist
from lines import line
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchshare

DEVICE = sys.argv[1]  # all ranks may use the same GPU: gloo copies through the host
kept: list[dist.ProcessGroup] = []
"""Groups of runs without torchshare: torch 2.11 may hang or abort if a DDP module has the last reference to one."""


def train(seed: int, steps: int = 12, **rendezvous) -> bytes:
    """Returns the weights."""
    assert not dist.is_initialized()
    dist.init_process_group("gloo", **rendezvous)
    rank = dist.get_rank()
    assert dist.get_world_size() == 2 and rank == int(os.environ["RANK"])
    torch.manual_seed(seed)
    width = 16 * (1 + seed % 2)  # collectives of the two jobs differ in size
    layers = [nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(DEVICE), bucket_cap_mb=0.001)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(100 * seed + rank)
    for _ in range(steps):
        x, y = torch.randn(32, 8, device=DEVICE), torch.randint(0, 3, (32,), device=DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    group = dist.new_group([0, 1])
    total = torch.tensor([rank, seed], device=DEVICE)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [1, 2 * seed]
    assert dist.get_group_rank(group, rank) == rank and dist.get_process_group_ranks(group) == [0, 1]
    dist.barrier()
    if rendezvous:
        kept.append(dist.group.WORLD)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())


def inherits(seed: int) -> float:
    """A job of a program that has a default group gets one of its own, which it does not destroy."""
    assert dist.is_initialized() and dist.distributed_c10d._get_default_group() is not outer
    total = torch.tensor([float(seed)], device=DEVICE)
    for _ in range(10):
        dist.all_reduce(total)
    return total.item()


def alone_train(seed: int) -> bytes:
    """Plain torch does not make its default group twice from one store."""
    store = next(dist.rendezvous("env://"))[0]
    place = {"rank": int(os.environ["RANK"]), "world_size": 2}
    weights = train(seed, store=dist.PrefixStore(f"alone {seed}", store), **place)
    gc.collect()  # the module
    kept.clear()
    return weights


alone = {seed: alone_train(seed) for seed in (1, 2)}
for policy in ("priority", "strict", "best_fit"):
    with torchshare.Runtime(device=DEVICE, policy=policy) as runtime:
        for seed in (1, 2):
            runtime.submit(
                lambda job: train(int(job.name)), name=str(seed), priority="primary" if seed == 1 else "secondary"
            )
        results = runtime.wait(timeout=300)
    assert not dist.is_initialized()
    same = [results[str(seed)].value == alone[seed] for seed in (1, 2)]
    line(f"{policy}: {same}")
    assert all(same)

dist.init_process_group("gloo")
outer = dist.distributed_c10d._get_default_group()
with torchshare.Runtime(device=DEVICE) as runtime:
    for seed in (3, 4):
        runtime.submit(lambda job: inherits(int(job.name)), name=str(seed))
    results = runtime.wait(timeout=300)
assert [results[name].value for name in ("3", "4")] == [3 * 2**10, 4 * 2**10]
assert dist.distributed_c10d._get_default_group() is outer
dist.barrier()
line("inherits: True")
dist.destroy_process_group()
