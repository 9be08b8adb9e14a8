"""Traced graphs, and how they are compared with the eager code that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule

from torchshare.training import pytree

Kind = Literal["step", "gradients", "update", "model"]
_PLAIN = (int, float, bool, str, bytes, type(None))


class Untraceable(Exception):
    """Code that cannot be compiled; the message says why."""


BERNOULLI, UNIFORM, NORMAL, DROPOUT = range(4)  # values of Noise::Kind in C++
Noise = tuple[Tensor, int, float, float]
"""A tensor of random numbers, drawn before each run: BERNOULLI (p, unused), UNIFORM (from, to), NORMAL (mean, standard
deviation) or DROPOUT (p, unused), what CUDA's dropout turns ones into."""


@dataclass(frozen=True)
class Traced:
    """A graph whose inputs are the bound tensors of its kind (see the tracers), `captured`, `noise`, and `data`."""

    kind: Kind
    graph: GraphModule
    captured: list[Tensor]
    """Tensors that the traced code reads and that are neither the model's nor among the data."""
    noise: list[Noise]
    data: list[Tensor]
    bound: list[Tensor]
    """Examples of the bound tensors; the optimizer's state may not exist yet."""
    any_rows: tuple[int, ...] = ()
    """The indices of `data` whose first dimension may have another size, the same for all of them."""

    @property
    def inputs(self) -> list[Tensor]:
        return [*self.bound, *self.captured, *(tensor for tensor, *_ in self.noise), *self.data]

    def examples(self) -> Iterator[list[Tensor]]:
        """The inputs; if their number of rows may vary, the same with one row and with twice as many, too."""
        yield self.inputs
        for times in (0, 2) if self.any_rows else ():
            data = [_resized(t, times) if index in self.any_rows else t for index, t in enumerate(self.data)]
            yield [*self.inputs[: -len(data)], *data]

    def check(self, compiled: Callable[[list[Tensor]], list[Tensor]]) -> None:
        """Runs the compiled graph and this one on copies of the inputs. Raises Untraceable if the results differ."""
        for example in self.examples():
            outcomes = []
            for run in (lambda inputs: self.graph(*inputs), compiled, compiled):  # twice: it must be stateless
                inputs = [copy(tensor) for tensor in example]
                try:
                    with torch.no_grad():
                        outcomes.append([*run(inputs), *inputs])
                except RuntimeError as error:
                    raise Untraceable(f"the compiled '{self.kind}' fails: {first_line(error)}") from error
            for eager, _, result in zip(*outcomes, strict=True):
                if (found := difference(result, eager)) is not None:
                    raise Untraceable(f"the compiled '{self.kind}' differs from eager by {found}")


def _resized(tensor: Tensor, times: int) -> Tensor:
    """The rows of a tensor so many times; 0: its first row. With the same strides."""
    if times == 0:
        return tensor[:1]
    rows = tensor.size(0)
    resized = tensor.new_empty_strided((times * rows, *tensor.shape[1:]), tensor.stride())
    for begin in range(0, times * rows, rows):
        resized[begin : begin + rows].copy_(tensor)
    return resized


def structure_of(tree: Any, what: str) -> list[Any]:
    """See pytree.structure. Raises Untraceable for a leaf that could change without being another object."""
    leaves: list[Any] = []
    pytree.map_leaves(leaves.append, tree)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_PLAIN)):
            raise Untraceable(f"{what} must hold tensors, numbers and strings, got {type(leaf).__name__}")
    return pytree.structure(tree)


def copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides. An expanded tensor, which no op may write to, is returned as it is."""
    copied = tensor.detach().clone()
    return copied if copied.stride() == tensor.stride() else tensor.detach()


def draw(noise: Noise) -> None:
    """Fills a noise tensor as C++ does before a compiled step runs."""
    tensor, kind, first, second = noise
    if kind == BERNOULLI:
        tensor.bernoulli_(first)
    elif kind == UNIFORM:
        tensor.uniform_(first, second)
    elif kind == NORMAL:
        tensor.normal_(first, second)
    else:
        tensor.copy_(torch.native_dropout(torch.ones_like(tensor), first, True)[0])


def difference(result: Tensor, eager: Tensor) -> str | None:
    """The largest difference of finite numbers, if beyond sqrt(eps) tolerance, or of which numbers are finite; else
    None."""
    if eager.dtype == torch.bool:
        result, eager = result.int(), eager.int()
    finite = torch.isfinite(eager)
    if not torch.equal(torch.isfinite(result), finite):
        return "which numbers are finite"
    result, eager = result[finite], eager[finite]
    if eager.numel() == 0:
        return None
    largest = eager.abs().max()
    allowed = torch.finfo(eager.dtype).eps ** 0.5 * largest if eager.is_floating_point() else 0
    found = (result - eager).abs().max()
    return None if found <= allowed else f"{found:.3g} of {largest:.3g}"


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""
