"""The models of benchmarks in plain torch.nn: image classifiers, language models, transformers."""

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


def pooled(*layers: nn.Module) -> list[nn.Module]:
    """Layers of a plain network without BatchNorm, and a maximum over 2x2 pixels."""
    return [*layers, nn.MaxPool2d(2, ceil_mode=True)]


def head(pixels: int, width: int) -> list[nn.Module]:
    """Three linear layers over 256 or 512 channels of `pixels` each, as AlexNet and VGG have them."""
    return [
        *(nn.Flatten(), nn.Dropout(), nn.Linear(pixels, width), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, CLASSES)),
    ]


def alexnet(tiny: bool) -> nn.Module:
    """AlexNet (arXiv 1404.5997)."""
    relu = partial(nn.ReLU, inplace=True)
    return nn.Sequential(
        *pooled(nn.Conv2d(3, 64, 11, stride=4, padding=2), relu()),
        *pooled(nn.Conv2d(64, 192, 5, padding=2), relu()),
        *(nn.Conv2d(192, 384, 3, padding=1), relu(), nn.Conv2d(384, 256, 3, padding=1), relu()),
        *(nn.Conv2d(256, 256, 3, padding=1), relu(), nn.AdaptiveAvgPool2d(1 if tiny else 6)),
        *head(256 if tiny else 256 * 36, 64 if tiny else 4096),
    )


def vgg11(tiny: bool) -> nn.Module:
    """VGG-11 (arXiv 1409.1556)."""
    layers: list[nn.Module] = []
    inputs = 3
    for widths in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        stage: list[nn.Module] = []
        for width in widths[:1] if tiny else widths:
            stage += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        layers += pooled(*stage)
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1 if tiny else 7), *head(512 if tiny else 512 * 49, 64 if tiny else 4096)
    )


class Parallel(nn.Module):
    """The outputs of branches side by side: Inception's; with the input itself, DenseNet's."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def inception(tiny: bool) -> nn.Module:
    """GoogLeNet with BatchNorm (arXiv 1409.4842, table 1), without its further classifiers."""

    def block(inputs: int, *widths: int) -> nn.Module:
        one, narrow3, three, narrow5, five, pool = widths
        return Parallel(
            nn.Sequential(*conv(inputs, one, 1), nn.ReLU()),
            nn.Sequential(*conv(inputs, narrow3, 1), nn.ReLU(), *conv(narrow3, three, 3), nn.ReLU()),
            nn.Sequential(*conv(inputs, narrow5, 1), nn.ReLU(), *conv(narrow5, five, 5), nn.ReLU()),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), *conv(inputs, pool, 1), nn.ReLU()),
        )

    blocks = [
        *(block(192, 64, 96, 128, 16, 32, 32), block(256, 128, 128, 192, 32, 96, 64)),
        *(nn.MaxPool2d(3, 2, 1), block(480, 192, 96, 208, 16, 48, 64), block(512, 160, 112, 224, 24, 64, 64)),
        *(block(512, 128, 128, 256, 24, 64, 64), block(512, 112, 144, 288, 32, 64, 64)),
        *(block(528, 256, 160, 320, 32, 128, 128), nn.MaxPool2d(3, 2, 1)),
        *(block(832, 256, 160, 320, 32, 128, 128), block(832, 384, 192, 384, 48, 128, 128)),
    ]
    stem = [*conv(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *conv(64, 64, 1), nn.ReLU()]
    stem += [*conv(64, 192, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return (
        nn.Sequential(*stem, *blocks[:1], *classifier(256))
        if tiny
        else nn.Sequential(*stem, *blocks, *classifier(1024))
    )


def densenet(tiny: bool) -> nn.Module:
    """DenseNet-121 (arXiv 1608.06993)."""
    grow = 32

    def normed(inputs: int, outputs: int, size: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)]

    layers: list[nn.Module] = [*conv(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [*normed(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(1 if tiny else depth):
            new = nn.Sequential(*normed(channels, 4 * grow, 1), *normed(4 * grow, grow, 3))
            layers.append(Parallel(nn.Identity(), new))
            channels += grow
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *classifier(channels))


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
