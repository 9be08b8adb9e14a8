"""Double precision and determinism as settings of torch, ways of printing, and an optimizer with a closure."""

import random
import sys

import numpy as np
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("high")
torch.set_printoptions(precision=12, sci_mode=False)
np.set_printoptions(precision=3, suppress=True)
np.seterr(over="raise")
sys.setrecursionlimit(5000)


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Field(nn.Module):
    """A solution of a differential equation, u'' = -u."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


seed_everything(42)
x = torch.linspace(0, 3, 24).reshape(-1, 1).requires_grad_()
model = Field()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
log = open("double_precision.log", "w")


def closure():
    optimizer.zero_grad()
    u = model(x)
    first = derivative(u, x)
    loss = (derivative(first, x) + u).square().mean() + u[0].square().sum() + (first[0] - 1).square().sum()
    loss.backward()
    return loss


for epoch in range(4):
    loss = optimizer.step(closure)
    print(epoch, loss.detach(), loss.item(), file=log)
with torch.no_grad():
    found = model(x)
print(found.dtype, np.abs(found.numpy() - np.sin(x.detach().numpy())).mean(), torch.tensor(1 / 3), file=log)
log.close()
torch.save(model.state_dict(), "double_precision.pt")
