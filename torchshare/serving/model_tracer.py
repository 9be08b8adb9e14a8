"""A model's forward pass as a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchshare.training import pytree
from torchshare.training.graph_trace import GraphTracer, unchanged
from torchshare.training.traced import Traced, Untraceable, copy, difference, first_line, structure_of

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call."""


class ModelTracer(GraphTracer):
    """Traces what a model returns, without gradients. Bound tensors: `tensors`."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__(model)
        self._call = call

    def trace(self) -> tuple[Traced, Any]:
        """The graph for calls like the given one, with any number of rows if the model allows it; and what the model
        returns, with empty tensors. Raises Untraceable."""
        rows = next((tensor.size(0) for _, tensor in pytree.tensors(self._call)), 1)
        if rows > 1:
            try:
                return self._checked(rows)
            except Untraceable:
                pass
        return self._checked(None)

    def _checked(self, rows: int | None) -> tuple[Traced, Any]:
        traced = self._trace("model", self._outputs, self.tensors, self._call, rows=rows)
        if traced.noise:
            raise Untraceable("the forward pass draws random numbers")
        try:
            return traced, self._check(traced)
        except RuntimeError as error:  # of the user's code, for another number of rows
            raise Untraceable(f"{type(error).__name__}: {first_line(error)}") from error

    def _outputs(self, bound: list[Tensor], call: Call) -> list[Tensor]:
        args, kwargs = call
        with torch.no_grad(), self._running_on(bound):
            return pytree.all_tensors(self._model(*args, **kwargs))

    @torch.no_grad()
    def _check(self, traced: Traced) -> Any:
        """Compares the graph with the model, and returns what the model returns, with empty tensors. Raises Untraceable
        if they differ."""
        structures, outputs = [], []
        for example in traced.examples():
            inputs = [copy(tensor) for tensor in example]
            kept = inputs[: -len(traced.data)]
            versions = [tensor._version for tensor in kept]
            results = traced.graph(*inputs)
            if versions != [tensor._version for tensor in kept]:
                raise Untraceable("the forward pass changes a buffer")
            args, kwargs = pytree.with_tensors(self._call, [copy(t) for t in example[-len(traced.data) :]])
            with unchanged(self._model):
                outputs.append(self._model(*args, **kwargs))
            structures.append(structure_of(outputs[-1], "what the model returns"))
            for result, eager in zip(results, pytree.all_tensors(outputs[-1]), strict=True):
                if result.shape != eager.shape or (found := difference(result, eager)) is not None:
                    raise Untraceable(f"the traced result differs from eager by {found}")
        if any(structure != structures[0] for structure in structures):
            raise Untraceable("what the model returns beside tensors depends on the number of rows")
        if not results:
            raise Untraceable("the model returns no tensor")
        return pytree.map_leaves(lambda leaf: torch.empty(0) if isinstance(leaf, Tensor) else leaf, outputs[0])
