"""Run by torchrun: jobs with FSDP2 and with a pipeline schedule, compared with the same functions outside of jobs."""

import torch
import torch.distributed as dist
from lines import line
from store import RANK
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import torchshare

kept: list[dist.ProcessGroup] = []  # as in groups.py


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    width = 16 * seed
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)))


def data(seed: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.randn(48, 16 * seed), batch_size=8)


def shard(seed: int, job=None, **rendezvous) -> torch.Tensor:
    """Parameters sharded over the ranks. Returns the weights."""
    dist.init_process_group("gloo", **rendezvous)
    model = net(seed)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 * seed + RANK)
    for batch in data(seed) if job is None else job.batches(data(seed), sub_batch=3):
        if job is None:
            model(batch).square().mean().backward()
        else:
            batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    weights = [parameter.full_tensor() for parameter in model.parameters()]
    return leave(weights, rendezvous)


def pipeline(seed: int, **rendezvous) -> torch.Tensor:
    """Half of the layers on each rank, four microbatches. Returns the weights of this rank's half."""
    dist.init_process_group("gloo", **rendezvous)
    model = net(seed)[2 * RANK : 2 * RANK + 2]
    stage = PipelineStage(model, RANK, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(100 * seed)  # both ranks draw the same data
    for x in data(seed):
        schedule.step(*(() if RANK else (x,)), target=x if RANK else None)
        optimizer.step()
        optimizer.zero_grad()
    return leave(list(model.parameters()), rendezvous)


def leave(weights: list[torch.Tensor], rendezvous) -> torch.Tensor:
    dist.barrier()
    if rendezvous:
        kept.append(dist.group.WORLD)
    dist.destroy_process_group()
    return torch.cat([each.detach().flatten() for each in weights])


def alone(train, seed: int) -> torch.Tensor:
    """Plain torch does not make its default group twice from one store."""
    store = dist.PrefixStore(f"alone {train.__name__} {seed}", next(dist.rendezvous("env://"))[0])
    return train(seed, store=store, rank=RANK, world_size=2)


expected = {(train, seed): alone(train, seed) for train in (shard, pipeline) for seed in (1, 2)}
for policy, first, second in (
    ("strict", shard, shard),
    ("best_fit", pipeline, pipeline),
    ("priority", shard, pipeline),
):
    with torchshare.Runtime(device="cpu", policy=policy) as runtime:
        runtime.submit(lambda job, train=first: train(1), name="a", priority="primary")
        runtime.submit(lambda job, train=second: train(2), name="b")
        results = runtime.wait(timeout=300)
    assert torch.equal(results["a"].value, expected[first, 1])
    assert torch.equal(results["b"].value, expected[second, 2])
    line(f"{first.__name__} + {second.__name__}")


with torchshare.Runtime(device="cpu") as runtime:
    runtime.submit(lambda job: shard(1, job), name="a")
    torch.testing.assert_close(runtime.wait(timeout=300)["a"].value, expected[shard, 1], rtol=0, atol=1e-6)
line("in sub-batches")


def accumulate(job) -> None:
    dist.init_process_group("gloo")
    model = net(1)
    fully_shard(model)
    optimizer = torchshare.accumulate(torch.optim.SGD(model.parameters(), lr=0.1))
    for x in torchshare.batches(data(1)):
        model(x).square().mean().backward()
        optimizer.step()


with torchshare.Runtime(device="cpu") as runtime:
    job = runtime.submit(accumulate, name="a", sub_batch=4)
    runtime.wait(timeout=300, check=False)
assert "cannot weight gradients that are set without autograd" in str(job.result.exception), job.result
line("refused")
