"""Undoes forward and backward passes: gradients, buffers and random states get back the values they had before."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_LARGE = 2**16  # elements


class RandomStates:
    """A job's random states, now. Call `restore` or `forget` in the end."""

    def __init__(self, job: JobContext) -> None:
        self._host = job.host_random
        self._kept = self._host.keep()
        generators = job.handle.generator, job.handle.device_generator
        self._torch = [(generator, generator.get_state()) for generator in generators if generator is not None]

    def restore(self) -> None:
        self._host.restore(self._kept)
        for generator, state in self._torch:
            generator.set_state(state)

    def forget(self) -> None:
        self._host.forget(self._kept)

    def host_was_used(self) -> bool:
        generator, state = self._torch[0]
        return self._kept.states is not None or not torch.equal(generator.get_state(), state)


@dataclass(eq=False)
class _Buffer:
    """A buffer of a module."""

    module: weakref.ref[torch.nn.Module]
    name: str
    before: Tensor | None
    """The buffer itself, until the passes have ended."""
    copy: Tensor | None
    """Of its values. None for a large buffer that has never changed: its version tells whether it has."""
    version: int

    def has_changed(self) -> bool:
        return self.before is not None and self.version != _version(self.before)


class Buffers:
    """The buffers of the modules that forward passes call."""

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._buffers: list[_Buffer] = []

    def add(self, module: torch.nn.Module) -> bool:
        """Called before a forward pass of `module`. Saves the buffers that are new, of it and the modules in it;
        returns whether there are any."""
        before = len(self._buffers)
        for each in module.modules():
            if each not in self._modules:
                reference = weakref.ref(each)
                self._buffers += [
                    _Buffer(reference, name, buffer, buffer.detach().clone(), _version(buffer))
                    for name, buffer in each.named_buffers(recurse=False)
                ]
                self._modules.add(each)
        return len(self._buffers) > before

    def save(self) -> None:
        """Called before the passes of a batch."""
        pairs: list[tuple[Tensor, Tensor]] = []
        alive: list[_Buffer] = []
        for buffer in self._buffers:
            module = buffer.module()
            now = None if module is None else _buffer(module, buffer.name)
            if now is None:
                continue
            alive.append(buffer)
            buffer.before = now
            if buffer.copy is None:
                buffer.version = _version(now)
            elif _alike(buffer.copy, now):
                pairs.append((buffer.copy, now))
            else:
                buffer.copy = now.detach().clone()
        self._buffers = alive
        copy(pairs)

    def forget(self) -> None:
        """Called once the passes have succeeded."""
        for buffer in self._buffers:
            before, kept = buffer.before, buffer.copy
            if before is not None and kept is not None and kept.numel() > _LARGE and not buffer.has_changed():
                module = buffer.module()
                # The version alone says nothing of batch norm, which updates its statistics behind it.
                if module is None or (_buffer(module, buffer.name) is before and torch.equal(before, kept)):
                    buffer.copy = None
            buffer.before = None

    def restore(self) -> str | None:
        """Returns the name of a buffer that cannot be restored, if there is one."""
        pairs = []
        for buffer in self._buffers:
            module = buffer.module()
            if module is None or buffer.before is None:
                continue
            if buffer.copy is None and buffer.has_changed():
                buffer.copy = buffer.before.detach()  # saved from now on
                return f"{type(module).__name__}.{buffer.name}"
            if _buffer(module, buffer.name) is not buffer.before:
                setattr(module, buffer.name, buffer.before)
            if buffer.copy is not None:
                pairs.append((buffer.before, buffer.copy))
        copy(pairs)
        return None


class Gradients:
    """The gradients of leaves that backward passes have reached."""

    def __init__(self) -> None:
        self._leaves: dict[int, weakref.ref[Tensor]] = {}
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []  # the leaf, its gradient and a copy

    def __contains__(self, leaf: Tensor) -> bool:
        known = self._leaves.get(id(leaf))
        return known is not None and known() is leaf

    def add(self, leaves: Iterable[Tensor]) -> None:
        """Called before a backward pass. Saves gradients of leaves that are new."""
        for leaf in leaves:
            if leaf not in self:
                self._leaves[id(leaf)] = weakref.ref(leaf)
                self._save(leaf)

    def save(self) -> None:
        """Called before the passes of a batch."""
        for key, reference in list(self._leaves.items()):
            leaf = reference()
            if leaf is None:
                del self._leaves[key]
            elif leaf.grad is not None:
                self._save(leaf)

    def have_hooks(self) -> bool:
        """Whether anything acts on gradients as soon as they are complete, such as an optimizer."""
        leaves = (reference() for reference in self._leaves.values())
        return any(getattr(leaf, "_post_accumulate_grad_hooks", None) for leaf in leaves)

    def _save(self, leaf: Tensor) -> None:
        if leaf.grad is not None:
            self._before.append((leaf, leaf.grad, leaf.grad.detach().clone()))

    def forget(self) -> None:
        self._before.clear()

    def restore(self) -> None:
        for reference in self._leaves.values():
            leaf = reference()
            if leaf is not None:
                leaf.grad = None
        for leaf, gradient, _ in self._before:
            leaf.grad = gradient
        copy([(gradient.detach(), kept) for _, gradient, kept in self._before])
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


def copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copies to each first tensor from the second."""
    if pairs:
        with torch.no_grad():
            torch._foreach_copy_([to for to, _ in pairs], [source for _, source in pairs])


def _buffer(module: torch.nn.Module, name: str) -> Tensor | None:
    scripted = isinstance(module, torch.jit.ScriptModule)
    return getattr(module, name, None) if scripted else module._buffers.get(name)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
