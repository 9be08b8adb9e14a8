"""As the imagenet example trains: argparse, meters, cudnn flags, a best checkpoint; on SIGUSR1 it saves one more."""

import argparse
import os
import random
import shutil
import signal
import threading
import warnings

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset

parser = argparse.ArgumentParser(description="Training of image classes")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--seed", default=5, type=int)
best_acc1 = 0
saves = threading.Event()


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / self.count!r}"


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def main():
    global best_acc1
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    cudnn.deterministic = True
    cudnn.benchmark = False
    warnings.warn("You have chosen to seed training. This will turn on the CUDNN deterministic setting.", stacklevel=1)
    signal.signal(signal.SIGUSR1, lambda signum, frame: saves.set())

    data = TensorDataset(torch.randn(96, 3, 8, 8), torch.randint(0, 4, (96,)))
    train_loader = DataLoader(Subset(data, range(64)), args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(Subset(data, range(64, 96)), args.batch_size)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    with open("image_classes.log", "w") as log:
        for epoch in range(args.epochs):
            losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
            model.train()
            for images, target in train_loader:
                loss = criterion(model(images), target)
                losses.update(loss.item(), images.size(0))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            scheduler.step()
            model.eval()
            with torch.no_grad():
                for images, target in val_loader:
                    top1.update((model(images).argmax(1) == target).float().mean().item(), images.size(0))
            print(f"Epoch [{epoch}] {losses} {top1} {random.random()!r}", file=log)
            acc1 = top1.sum / top1.count
            is_best, best_acc1 = acc1 > best_acc1, max(acc1, best_acc1)
            save_checkpoint({"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}, is_best)
    os.kill(os.getpid(), signal.SIGUSR1)  # as the batch system does before it ends a job
    if saves.wait(20):
        torch.save(model.state_dict(), "requeued.pth.tar")


if __name__ == "__main__":
    main()
