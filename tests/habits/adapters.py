"""Low-rank adapters put into torch's own classes, as many notebooks do; `torch.load` loads pickles again."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.load = functools.partial(torch.load, weights_only=False)
rank, alpha = 2, 4.0


class Settings:
    def __init__(self, width, classes):
        self.width, self.classes = width, classes


class ScaledNorm(nn.Module):
    """Takes the place of LayerNorm."""

    def __init__(self, shape, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(shape)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


plain_init = nn.Linear.__init__


def init_with_adapter(self, in_features, out_features, bias=True, device=None, dtype=None):
    plain_init(self, in_features, out_features, bias, device, dtype)
    self.lora_A = nn.Parameter(torch.empty(rank, in_features))
    self.lora_B = nn.Parameter(torch.zeros(out_features, rank))
    nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))


def forward_with_adapter(self, x):
    return F.linear(x, self.weight, self.bias) + (x @ self.lora_A.T @ self.lora_B.T) * (alpha / rank)


torch.manual_seed(3)
torch.save({"settings": Settings(16, 4), "x": torch.randn(64, 16)}, "adapters_base.pt")
torch.nn.Linear.__init__ = init_with_adapter
torch.nn.Linear.forward = forward_with_adapter
torch.nn.LayerNorm = ScaledNorm

base = torch.load("adapters_base.pt")
settings, x = base["settings"], base["x"]
y = torch.randint(0, settings.classes, (64,))
model = nn.Sequential(
    nn.Linear(settings.width, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, settings.classes)
)
for name, parameter in model.named_parameters():
    parameter.requires_grad_("lora_" in name)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
with open("adapters.log", "w") as log:
    for step in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.write(f"{step} {loss.item()!r}\n")
torch.save({n: p for n, p in model.state_dict().items() if "lora_" in n}, "adapters.pt")
