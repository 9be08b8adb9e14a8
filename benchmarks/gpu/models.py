"""The models of the GPU benchmarks in plain torch.nn: image classifiers, language models, transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 1000  # of images


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps height and width at stride 1, and its BatchNorm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


def classifier(channels: int, dropout: float = 0.0) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(channels, CLASSES)]


class Shuffle(nn.Module):
    """ShuffleNetV2's unit (arXiv 1807.11164): two branches side by side, then their channels in turn."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, half = stride, outputs // 2
        left = [*conv(inputs, inputs, 3, stride, groups=inputs), *conv(inputs, half, 1), nn.ReLU(inplace=True)]
        self.left = nn.Sequential(*(left if stride > 1 else []))
        self.right = nn.Sequential(
            *(*conv(inputs if stride > 1 else half, half, 1), nn.ReLU(inplace=True)),
            *conv(half, half, 3, stride, groups=half),
            *(*conv(half, half, 1), nn.ReLU(inplace=True)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=1) if self.stride == 1 else (x, x)
        return F.channel_shuffle(torch.cat([self.left(left), self.right(right)], dim=1), groups=2)


def shufflenet(tiny: bool) -> nn.Module:
    """ShuffleNetV2 x1.0."""
    units: list[nn.Module] = []
    inputs = 24
    for outputs, repeats in ((116, 4), (232, 8), (464, 4)):
        units.append(Shuffle(inputs, outputs, stride=2))
        units += [Shuffle(outputs, outputs, stride=1) for _ in range(1 if tiny else repeats - 1)]
        inputs = outputs
    return nn.Sequential(
        *(*conv(3, 24, 3, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        *units,
        *(*conv(464, 1024, 1), nn.ReLU(inplace=True), *classifier(1024)),
    )


class Residual(nn.Module):
    """What `branch` adds to its input. With `shortcut`, to that of its input, and cut off below 0 (ResNet)."""

    def __init__(self, branch: list[nn.Module], shortcut: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        self.shortcut = None if shortcut is None else nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shortcut is None:
            return x + self.branch(x)
        return F.relu(self.branch(x) + self.shortcut(x), inplace=True)


def inverted(inputs: int, outputs: int, stride: int, expand: int) -> nn.Module:
    """MobileNetV2's block (arXiv 1801.04381)."""
    wide = inputs * expand
    layers = [*conv(inputs, wide, 1), nn.ReLU6(inplace=True)] if expand > 1 else []
    layers += [*conv(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True), *conv(wide, outputs, 1)]
    return Residual(layers) if stride == 1 and inputs == outputs else nn.Sequential(*layers)


def mobilenet(tiny: bool) -> nn.Module:
    """MobileNetV2."""
    blocks: list[nn.Module] = []
    inputs = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, outputs, repeats, stride in stages:
        for index in range(1 if tiny else repeats):
            blocks.append(inverted(inputs, outputs, stride if index == 0 else 1, expand))
            inputs = outputs
    return nn.Sequential(
        *(*conv(3, 32, 3, stride=2), nn.ReLU6(inplace=True)),
        *blocks,
        *(*conv(320, 1280, 1), nn.ReLU6(inplace=True), *classifier(1280, dropout=0.2)),
    )


def basic(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [*conv(inputs, width, 3, stride), nn.ReLU(inplace=True), *conv(width, width, 3)]


def bottleneck(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [
        *(*conv(inputs, width, 1), nn.ReLU(inplace=True)),
        *(*conv(width, width, 3, stride), nn.ReLU(inplace=True)),
        *conv(width, 4 * width, 1),
    ]


Block = Callable[[int, int, int], list[nn.Module]]  # of input channels, width and stride


def resnet(block: Block, grow: int, depths: tuple[int, ...], tiny: bool) -> nn.Module:
    """ResNet (arXiv 1512.03385) of blocks that put out `grow` times their width."""
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for index in range(1 if tiny else depth):
            stride = 2 if stage and not index else 1
            shortcut = [] if inputs == grow * width else conv(inputs, grow * width, 1, stride)
            blocks.append(Residual(block(inputs, width, stride), shortcut))
            inputs = grow * width
    return nn.Sequential(
        *(*conv(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        *blocks,
        *classifier(inputs),
    )


resnet18 = partial(resnet, basic, 1, (2, 2, 2, 2))
resnet50 = partial(resnet, bottleneck, 4, (3, 4, 6, 3))


class Recurrent(nn.Module):
    """A language model: words, two LSTM layers, words."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        words, width = 10_000, 32 if tiny else 650
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.head(self.lstm(self.embed(x))[0])
        return words


class Encoder(nn.Module):
    """BERT-like: every token sees every other; the first one is classified."""

    def __init__(self, words: int, width: int, layers: int, heads: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        layer = partial(nn.TransformerEncoderLayer, width, heads, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.Sequential(*(layer() for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        placed = self.embed(x) + self.places.weight[: x.size(1)]
        classes: torch.Tensor = self.head(self.norm(self.layers(placed)[:, 0]))
        return classes


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (rows, heads, tokens, width)
        out: torch.Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out


class Decoder(nn.Module):
    """GPT-2-like: every token sees those before it; the words' weights are those of the embedding."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.places = nn.Embedding(1024, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        blocks = [block for _ in range(layers) for block in self.block(width, heads)]
        self.layers = nn.Sequential(*blocks, nn.LayerNorm(width))

    @staticmethod
    def block(width: int, heads: int) -> tuple[nn.Module, nn.Module]:
        feed = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        return Residual([nn.LayerNorm(width), Attention(width, heads)]), Residual(feed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        placed = self.embed(x) + self.places.weight[: x.size(1)]
        return F.linear(self.layers(placed), self.embed.weight)


def bert(tiny: bool) -> nn.Module:
    return Encoder(30_522, 32, 2, 2, 2) if tiny else Encoder(30_522, 768, 12, 12, 2)


def gpt2(tiny: bool) -> nn.Module:
    return Decoder(50_257, 32, 2, 2) if tiny else Decoder(50_257, 1280, 36, 20)
