"""Trains a small CNN, with worker processes, augmentation in the script's own Dataset, and checkpoints."""

import argparse

import torch
from data import Squares
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(batches, **_options):
        return batches


class Flipped(Dataset):
    """Flips images at random, with the worker's random state."""

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        image, label = self.images[index]
        return (image.flip(-1), label ^ 1) if torch.rand(()) < 0.5 else (image, label)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4))
        self.classify = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 16, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(images))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--checkpoint", default="vision.pt")
    args = parser.parse_args()

    torch.manual_seed(0)
    method = args.start_method if args.workers else None
    loader = DataLoader(
        Flipped(Squares(512)),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=method,
        persistent_workers=args.workers > 0,
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in tqdm(loader, desc=f"epoch {epoch}"):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    torch.save(model, args.checkpoint)


if __name__ == "__main__":
    main()
