"""Two Python jobs under a sanitizer, `sanitized_pair.py cpu|cuda`: training, suspend, resume, cancel, gate policies, an
automatic start with its probe, a bound, captured graphs. See scripts/run_sanitized.sh."""

import sys

import torch
from torch import nn

import torchshare

DEVICE = sys.argv[1]


def train(job: torchshare.Job, steps: int = 10, graph: bool = False) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    data = [(torch.randn(8, 8, device=DEVICE), torch.randint(0, 2, (8,), device=DEVICE)) for _ in range(steps)]

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    loss = job.graph(loss_fn) if graph else loss_fn
    for batch in job.batches(data, sub_batch=3):
        batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def train_for_ever(job: torchshare.Job) -> None:
    while True:
        train(job)


def main() -> None:
    assert "/build/cpython" not in torchshare._C.__file__, torchshare._C.__file__
    for policy in ("priority", "strict", "best_fit"):
        with torchshare.Runtime(device=DEVICE, policy=policy) as runtime:
            runtime.submit(train, name="primary", priority="primary", threads=1)
            partner = runtime.submit(train_for_ever, name="secondary", start="step:3", threads=1)
            runtime.start()
            while partner.result.steps < 2:
                partner.suspend()
                runtime.results  # noqa: B018  (reads while the jobs write)
                partner.resume()
            partner.cancel()
            print(runtime.wait())
    for options in ({}, {"max_slowdown": 0.1}):
        with torchshare.Runtime(device=DEVICE, **options) as runtime:
            for name, priority in (("primary", "primary"), ("secondary", "secondary")):
                runtime.submit(
                    lambda job: train(job, 60), name=name, priority=priority, start="auto", threads=1, meter_memory=True
                )
            print(runtime.wait(), *runtime.bound_report(), sep="\n")
    if DEVICE == "cuda":
        with torchshare.Runtime(device=DEVICE) as runtime:
            for name in ("primary", "secondary"):
                runtime.submit(lambda job: train(job, 30, graph=True), name=name, threads=1)
            print(runtime.wait())


if __name__ == "__main__":
    main()
