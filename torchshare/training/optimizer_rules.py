"""Optimizer updates as ops that can be compiled, with the learning rate and the number of steps as tensors. They follow
the order of ops of torch.optim's single-tensor implementations, so that results differ by rounding only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]  # a parameter group of torch.optim
State = dict[str, Tensor]  # of one parameter


@dataclass(frozen=True)
class Rule:
    """How an optimizer updates a parameter in place, and the state that it keeps."""

    state: Callable[[Group], tuple[str, ...]]
    """Names of the state tensors. "step" is a scalar; all others have the shape of the parameter."""
    update: Callable[[Group, Tensor, Tensor, State, Tensor], None]
    """(group, parameter, gradient, state, learning rate)"""


def _sgd_state(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _sgd(group: Group, parameter: Tensor, gradient: Tensor, state: State, lr: Tensor) -> None:
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    if group["momentum"] != 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
    parameter.sub_(lr * gradient)


def _adam_state(group: Group) -> tuple[str, ...]:
    return ("step", "exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())


def _adam(group: Group, parameter: Tensor, gradient: Tensor, state: State, lr: Tensor) -> None:
    beta1, beta2 = group["betas"]
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0:
        if group["decoupled_weight_decay"]:
            parameter.mul_(1 - lr * group["weight_decay"])
        else:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    step = state["step"].add_(1).double()  # stored in single precision, but eager computes with a Python float
    if group["amsgrad"]:
        square = state["max_exp_avg_sq"].copy_(torch.maximum(state["max_exp_avg_sq"], square))
    denominator = (square.sqrt() / (1 - beta2**step).sqrt()).add(group["eps"])
    parameter.sub_(lr / (1 - beta1**step) * (mean / denominator))


_SGD = Rule(_sgd_state, _sgd)
_ADAM = Rule(_adam_state, _adam)
_RULES: dict[type, Rule] = {torch.optim.SGD: _SGD, torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM}


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | str:
    """The optimizer's rule, or why it is not supported."""
    kind = type(optimizer)
    if kind not in _RULES:
        return f"the optimizer is {kind.__name__}; supported are {', '.join(known.__name__ for known in _RULES)}"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return "the optimizer is differentiable"
        odd = [key for key, value in group.items() if key not in ("params", "lr") and _has_tensor(value)]
        if odd:
            return f"the optimizer's '{odd[0]}' is a tensor"
    return _RULES[kind]


def _has_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_has_tensor, value)))
