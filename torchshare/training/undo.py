"""Undoes forward and backward passes: gradients, buffers and random states get back the values they had before."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchshare import _C
from torchshare.context.tensor_map import TensorMap

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext


class RandomStates:
    """A job's random states, now. Call `restore` or `forget` in the end."""

    def __init__(self, job: JobContext) -> None:
        tracked = [value for value in job.tracked.objects.values() if isinstance(value, torch.Generator)]
        generators = job.handle.generator, job.handle.device_generator, *tracked
        self._torch = [(generator, generator.get_state()) for generator in generators if generator is not None]
        self._host = job.host_random
        self._kept = self._host.keep()

    def restore(self) -> None:
        self._host.restore(self._kept)
        for generator, state in self._torch:
            generator.set_state(state)

    def forget(self) -> None:
        self._host.forget(self._kept)

    def host_was_used(self) -> bool:
        generator, state = self._torch[0]
        return self._kept.states is not None or not torch.equal(generator.get_state(), state)


class Buffers:
    """The buffers of the modules that forward passes call."""

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._before: list[tuple[weakref.ref[torch.nn.Module], dict[str, Tensor | None]]] = []
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # by its id: a buffer and a copy of it, which is reused
        self._same = _C.BufferCopies()
        self.has_lazy = False
        """Whether a module has yet to find out its shapes."""

    def add(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """Called before a forward pass of `module`. Saves the buffers of it and the modules in it that are new, and
        returns those."""
        new = [each for each in module.modules() if each not in self._modules]
        if any(parameter is not None and is_lazy(parameter) for each in new for parameter in each._parameters.values()):
            self.has_lazy = True
        if buffers := [buffer for buffer in self._found(new) if id(buffer) not in self._copies]:
            self._copies.update(self._copied(buffers))
        self._modules.update(new)
        return new

    def save(self) -> None:
        """Called before the passes of a batch, while the GPU may have nothing to do."""
        modules = list(self._modules)
        if self._same.refresh(modules):
            return
        self._same.forget()
        self._before.clear()
        buffers = self._found(modules)
        self._copies = self._copied(buffers)
        if not self.has_lazy and all(id(buffer) in self._copies and _is_plain(buffer) for buffer in buffers):
            self._same.keep(modules, grouped((kept, buffer) for buffer, kept in self._copies.values()))

    def _found(self, modules: list[torch.nn.Module]) -> list[Tensor]:
        """The buffers that the modules have now, which `restore` gives them back."""
        gone = _caller(self)
        before = [(weakref.ref(each, gone), dict(each._buffers.items())) for each in modules if each._buffers]
        self._before += before
        buffers = [buffer for _, named in before for buffer in named.values() if buffer is not None]
        if any(map(is_lazy, buffers)):
            self.has_lazy = True
            return [buffer for buffer in buffers if not is_lazy(buffer)]
        return buffers

    def _gone(self, reference: weakref.ref[torch.nn.Module]) -> None:
        """Frees the copies of a module that is freed, as soon as it is. In any thread."""
        self._same.forget()
        self._before = [(each, buffers) for each, buffers in list(self._before) if each is not reference]
        rest = {id(buffer) for _, buffers in list(self._before) for buffer in buffers.values()}
        for key in [key for key in list(self._copies) if key not in rest]:
            self._copies.pop(key, None)

    def _copied(self, buffers: list[Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
        """Copies of those that can be written to."""
        copies, pairs = {}, []
        for buffer in buffers:
            if not _is_writable(buffer):
                continue
            _, kept = self._copies.get(id(buffer), (None, None))
            if kept is not None and _is_plain(buffer) and _alike(kept, buffer):
                pairs.append((kept, buffer))
            else:
                kept = buffer.detach().clone()
            copies[id(buffer)] = buffer, kept
        copy(pairs)
        return copies

    def forget(self) -> None:
        """Called once the passes have succeeded."""
        self.has_lazy = False

    def restore(self) -> None:
        pairs = []
        before = {module: buffers for reference, buffers in self._before if (module := reference()) is not None}
        for module in list(self._modules):
            buffers = before.get(module, {})
            now = dict(module._buffers.items())
            for name in [name for name in now if name not in buffers]:
                delattr(module, name)
            for name, buffer in buffers.items():
                if name not in now:  # or it would become a plain attribute
                    module.__dict__.pop(name, None)
                    module._buffers[name] = buffer
                elif now[name] is not buffer:
                    setattr(module, name, buffer)
                if buffer is not None and id(buffer) in self._copies and _is_writable(buffer):
                    pairs.append(self._copies[id(buffer)])
        copy(pairs)
        self.forget()


class Gradients:
    """The gradients of leaves that backward passes have reached."""

    def __init__(self) -> None:
        self._leaves: TensorMap[None] = TensorMap()
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []  # the leaf, its gradient and a copy

    def __contains__(self, leaf: Tensor) -> bool:
        return leaf in self._leaves

    def add(self, leaf: Tensor) -> None:
        """Called before a backward pass first reaches `leaf`. Saves its gradient."""
        self._leaves[leaf] = None
        self._save(leaf)

    def save(self) -> None:
        """Called before the passes of a batch."""
        for leaf in self._leaves:
            self._save(leaf)

    def have_hooks(self) -> bool:
        """Whether anything acts on gradients as soon as they are complete, such as an optimizer."""
        return any(getattr(leaf, "_post_accumulate_grad_hooks", None) for leaf in self._leaves)

    def _save(self, leaf: Tensor) -> None:
        if leaf.grad is not None:
            self._before.append((leaf, leaf.grad, leaf.grad.detach().clone()))

    def forget(self) -> None:
        self._before.clear()

    def restore(self) -> None:
        for leaf in self._leaves:
            leaf.grad = None
        for leaf, gradient, _ in self._before:
            leaf.grad = gradient
        copy([(gradient, kept) for _, gradient, kept in self._before])
        self._before.clear()


def leaves_of(loss: Tensor) -> Iterator[Tensor]:
    """The tensors that gradients of `loss` accumulate in."""
    seen: set[object] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        stack.extend(function for function, _ in node.next_functions)


Group = tuple[list[Tensor], list[Tensor]]


def grouped(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Group]:
    """The first and the second tensors, by device and type. On a GPU, torch copies a list of tensors of one type with
    one kernel, and a list of several types tensor by tensor."""
    groups: defaultdict[object, Group] = defaultdict(lambda: ([], []))
    for to, source in pairs:
        targets, sources = groups[to.device, to.dtype]
        targets.append(to)
        sources.append(source)
    return list(groups.values())


def copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies to each first tensor from the second, which is like it."""
    with torch.no_grad():
        for to, source in pairs:
            if not _is_plain(to):
                to.copy_(source)
        for targets, sources in grouped(pair for pair in pairs if _is_plain(pair[0])):
            torch._foreach_copy_(targets, sources)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _is_writable(tensor: Tensor) -> bool:
    return not tensor.is_inference() and not (_is_plain(tensor) and 0 in tensor.stride())


def _is_plain(tensor: Tensor) -> bool:
    """True if the tensor has strides: it is neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _caller(buffers: Buffers) -> Callable[[weakref.ref[torch.nn.Module]], None]:
    """Returns a callback for weak references that calls `buffers._gone` and does not keep `buffers` alive."""
    mine = weakref.ref(buffers)

    def gone(reference: weakref.ref[torch.nn.Module]) -> None:
        if (found := mine()) is not None:
            found._gone(reference)

    return gone
