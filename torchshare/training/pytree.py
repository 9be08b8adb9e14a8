"""Batches as trees: tuples, lists, mappings, dataclasses and namedtuples of tensors, nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors(tree: object, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of `tree` with rows (at least one dimension), with its path: `batch[0]['ids']`."""
    if isinstance(tree, torch.Tensor):
        if tree.dim() > 0:
            yield path, tree
    else:
        for key, child in _children(tree):
            yield from tensors(child, path + key)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Applies `function` to each tensor with rows, and returns a tree of the same structure with all other leaves."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 else leaf, tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to each leaf, in order. Returns a tree of the same structure."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return _rebuilt_mapping(tree, {key: map_leaves(function, child) for key, child in tree.items()})
    if isinstance(tree, (tuple, list)):
        children = [map_leaves(function, child) for child in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    if _is_dataclass_instance(tree):
        changes = {
            field.name: map_leaves(function, getattr(tree, field.name))
            for field in dataclasses.fields(tree)
            if field.init
        }
        return dataclasses.replace(tree, **changes)
    return function(tree)


def all_tensors(tree: Any) -> list[torch.Tensor]:
    """Every tensor of `tree`, in order."""
    found: list[torch.Tensor] = []
    map_leaves(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, tree)
    return found


def structure(tree: Any) -> list[Any]:
    """All of `tree` but its tensors: types and keys of containers, leaves with their types, `Tensor` for a tensor.
    Equal for trees that differ in the values of tensors only."""
    if isinstance(tree, torch.Tensor):
        return [torch.Tensor]
    found: list[Any] = [type(tree)]
    if not isinstance(tree, (Mapping, tuple, list)) and not _is_dataclass_instance(tree):
        found.append(tree)
    for key, child in _children(tree):
        found += [key, *structure(child)]
    return found


def with_tensors(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """`tree` with its tensors replaced, in order."""
    remaining = iter(tensors)
    return map_leaves(lambda leaf: next(remaining) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _children(tree: object) -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in tree.items())
    elif isinstance(tree, (tuple, list)):
        yield from ((f"[{index}]", child) for index, child in enumerate(tree))
    elif _is_dataclass_instance(tree):
        yield from ((f".{field.name}", getattr(tree, field.name)) for field in dataclasses.fields(tree))  # type: ignore[arg-type]


def _is_dataclass_instance(tree: Any) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _rebuilt_mapping(tree: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    # Keeps the type and attributes of a defaultdict, an OrderedDict or a BatchEncoding.
    if type(tree) is dict or not hasattr(tree, "copy"):
        return items
    copied = tree.copy()
    copied.update(items)
    return copied  # type: ignore[no-any-return]
