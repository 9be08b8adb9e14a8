"""The job that has written the files of earlier versions; see former_files.py."""

import torch
from torch import nn
from torch.nn import functional as F


def train(job, batches=12):
    """Returns the weights at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    data = [(torch.linspace(0, n % 12 + 1, 32).view(8, 4), torch.arange(16.0).view(8, 2)) for n in range(batches)]
    for batch in job.batches(data):
        batch.backward(lambda x, y: F.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def train_long(job):
    """To be profiled."""
    return train(job, 2000)
