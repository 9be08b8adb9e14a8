"""Small models of seven kinds, with their data and losses: convolutions, agents and language models.

Each has what makes its kind what it is (residual blocks, grouped and shuffled channels, a target network, a masked
token), in sizes that make a step take 5 to 50 ms on one core."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, WORDS, LENGTH = 10, 512, 32
STATE, ACTIONS = 16, 4
DISCOUNT = 0.99
_BATCHES = 8  # made before the training, and used in turns

Batch = tuple[torch.Tensor, ...]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.layers(x))


class Shuffled(nn.Module):
    """1x1 convolutions of groups of channels around a depthwise one; between, each group gets channels of all."""

    def __init__(self, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.last = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.shuffle = nn.ChannelShuffle(groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm(self.last(self.depthwise(self.shuffle(self.first(x))))))


class Images(nn.Module):
    """A classifier of images of 32 x 32."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def data(self) -> Batch:
        return torch.randn(16, 3, 32, 32), torch.randint(0, CLASSES, (16,))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


def resnet() -> Images:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    return Images(nn.Conv2d(3, 32, 3, stride=2, padding=1), *(Residual(32) for _ in range(3)), *head)


def vgg() -> Images:
    def block(before: int, after: int) -> tuple[nn.Module, ...]:
        return (nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    head = (nn.Flatten(), nn.Linear(64 * 16, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return Images(*block(3, 16), *block(16, 32), *block(32, 64), *head)


def shufflenet() -> Images:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    return Images(nn.Conv2d(3, 64, 3, stride=2, padding=1), *(Shuffled(64) for _ in range(4)), *head)


def layers(*sizes: int) -> nn.Sequential:
    steps = itertools.pairwise(sizes)
    return nn.Sequential(*(each for before, after in steps for each in (nn.Linear(before, after), nn.ReLU())))


class Agent(nn.Module):
    """What has been seen: states, actions, rewards, and the states after."""

    def data(self) -> Batch:
        rows = 256
        return (
            *(torch.randn(rows, STATE), torch.randint(0, ACTIONS, (rows,))),
            *(torch.randn(rows), torch.randn(rows, STATE)),
        )


class DQN(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Sequential(layers(STATE, 512, 512), nn.Linear(512, ACTIONS))
        self.target = copy.deepcopy(self.values).requires_grad_(False)

    def loss(
        self, state: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, following: torch.Tensor
    ) -> torch.Tensor:
        wanted = reward + DISCOUNT * self.target(following).amax(1)
        return F.smooth_l1_loss(self.values(state).gather(1, action[:, None])[:, 0], wanted)


class A2C(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.common = layers(STATE, 512, 512)
        self.policy, self.value = nn.Linear(512, ACTIONS), nn.Linear(512, 1)

    def loss(
        self, state: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, following: torch.Tensor
    ) -> torch.Tensor:
        features = self.common(state)
        with torch.no_grad():
            wanted = reward + DISCOUNT * self.value(self.common(following))[:, 0]
        advantage = wanted - self.value(features)[:, 0]
        chances = self.policy(features).log_softmax(1)
        entropy = -(chances.exp() * chances).sum(1)
        chosen = chances.gather(1, action[:, None])[:, 0]
        return (advantage.square() - advantage.detach() * chosen - 0.01 * entropy).mean()


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 128), nn.Parameter(torch.zeros(LENGTH, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, WORDS)

    def data(self) -> Batch:
        return (torch.randint(1, WORDS, (8, LENGTH)),)


class Bert(Language):
    """Guesses every eighth word, which it does not see."""

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(LENGTH, device=text.device) % 8 == 0
        seen = self.layers(self.words(text.masked_fill(hidden, 0)) + self.positions)
        return F.cross_entropy(self.head(seen[:, hidden]).flatten(0, 1), text[:, hidden].flatten())


class GPT2(Language):
    """Guesses the next word."""

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=text.device)
        seen = self.layers(self.words(text) + self.positions, mask=mask, is_causal=True)
        return F.cross_entropy(self.head(seen[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


KINDS: dict[str, Callable[[], Any]] = {
    "resnet": resnet,
    "vgg": vgg,
    "shufflenet": shufflenet,
    "dqn": DQN,
    "a2c": A2C,
    "bert": Bert,
    "gpt2": GPT2,
}


def train(job: Any, kind: str, steps: int, device: str, step_done: Callable[[], bool] = lambda: True) -> None:
    """Trains in a job; ends early if `step_done`, which is called after each step, returns False."""
    model = KINDS[kind]().to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
    job.track(model=model, optimizer=optimizer)
    data = [tuple(part.to(device) for part in model.data()) for _ in range(_BATCHES)]
    for batch in job.batches([data[step % _BATCHES] for step in range(steps)]):
        batch.backward(model.loss)
        optimizer.step()
        optimizer.zero_grad()
        if not step_done():
            return
