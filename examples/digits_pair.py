"""Two real trainings on scikit-learn's handwritten digits, each alone and then together.

The primary is a small CNN. The secondary, a transformer that reads the eight pixel rows, joins at the primary's
step 50. Run it with `make demo`, or the pair alone from the command line:

    torchshare run examples/digits_pair.py:train_cnn examples/digits_pair.py:train_rows --start step:50 --threads 1
"""

import sys
from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchshare

ENOUGH = 0.97  # test accuracy of the primary
TIMELINE = "timeline.json"


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Training data, and inputs and labels for the test: 1,347 and 450 images of 8 x 8 pixels, values 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.25, random_state=0)
    return TensorDataset(train_x, train_y), test_x, test_y


class RowTransformer(nn.Module):
    """A transformer that reads an image as a sequence of eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.classify = nn.Linear(8 * 64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.encoder(self.embed(images.squeeze(1)))
        return self.classify(rows.flatten(1))


def train(job: torchshare.Job, model: nn.Module, epochs: int) -> dict[str, torch.Tensor]:
    """An ordinary training loop; only `job.batches` and `batch.backward` are torchshare's. Returns the weights."""
    data, test_x, test_y = digits()
    loader = DataLoader(data, batch_size=64, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        model.train()
        for batch in job.batches(loader):
            loss = batch.backward(lambda x, y: nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        job.log(loss=loss.item(), accuracy=accuracy)
    return model.state_dict()


def train_cnn(job: torchshare.Job) -> dict[str, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10))  # fmt: skip
    return train(job, model, epochs=15)


def train_rows(job: torchshare.Job) -> dict[str, torch.Tensor]:
    return train(job, RowTransformer(), epochs=15)


def run(jobs: list[dict[str, object]], timeline: str | None = None) -> Mapping[str, torchshare.Result]:
    with torchshare.Runtime() as runtime:
        for job in jobs:
            runtime.submit(**job)
        results = runtime.wait()
        if timeline is not None:
            runtime.write_timeline(timeline)
    return results


def main() -> int:
    cnn = {"function": train_cnn, "name": "cnn", "priority": "primary", "threads": 1, "seed": 1}
    rows = {"function": train_rows, "name": "rows", "start": "step:50", "sub_batch": 16, "threads": 1, "seed": 2}
    alone = {**run([cnn]), **run([{**rows, "start": "now"}])}
    shared = run([cnn, rows], TIMELINE)

    print(f"{'job':5} {'steps':>6} {'loss':>7} {'accuracy':>9} {'alone s':>8} {'shared s':>9} {'slowdown':>9}  weights")
    same = True
    for name, result in shared.items():
        solo = alone[name]
        identical = all(torch.equal(tensor, result.value[key]) for key, tensor in solo.value.items())
        same = same and identical
        print(
            f"{name:5} {result.steps:6} {result.metrics['loss']:7.4f} {result.metrics['accuracy']:9.1%}"
            f" {solo.ran_s:8.2f} {result.ran_s:9.2f} {result.ran_s / solo.ran_s:9.2f}"
            f"  {'bit-identical to alone' if identical else 'DIFFERENT from alone'}"
        )
    print(f"\nTimeline: {TIMELINE} (open it at https://ui.perfetto.dev)")
    return 0 if same and shared["cnn"].metrics["accuracy"] >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
