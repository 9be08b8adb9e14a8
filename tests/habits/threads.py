"""Workers of a loader, a thread that prefetches and adds noise, and a thread that writes the log."""

import logging
import logging.handlers
import queue
import random
import threading

import numpy as np
import torch
import torch.multiprocessing
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.multiprocessing.set_sharing_strategy("file_system")


class Spirals(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        """Augmented with the seeds that each worker has."""
        angle, side = index / 10, index % 2
        point = torch.tensor([np.cos(angle + 3.14 * side), np.sin(angle + 3.14 * side)], dtype=torch.float32) * angle
        return point + 0.01 * torch.randn(2) + 0.01 * random.random() + 0.01 * np.random.rand(), side


def worker_init_fn(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


class Prefetcher(threading.Thread):
    def __init__(self, loader):
        super().__init__(daemon=True)
        self.loader, self.queue = loader, queue.Queue(maxsize=2)
        self.start()

    def run(self):
        for x, y in self.loader:
            self.queue.put((x + 0.01 * torch.randn_like(x), y))
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


torch.manual_seed(17)
random.seed(17)
np.random.seed(17)
lines = queue.SimpleQueue()
logger = logging.getLogger("spirals")
logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(logging.handlers.QueueHandler(lines))
listener = logging.handlers.QueueListener(lines, logging.FileHandler("threads.log", "w"))
listener.start()

loader = DataLoader(
    Spirals(),
    16,
    shuffle=True,
    num_workers=2,
    persistent_workers=True,
    worker_init_fn=worker_init_fn,
    multiprocessing_context="fork",
)
model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in Prefetcher(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        logger.info("epoch %d loss %r", epoch, loss.item())
listener.stop()
torch.save(model.state_dict(), "threads.pt")
