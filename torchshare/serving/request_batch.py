"""Requests that a job answers together."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchshare.serving.request import Request
from torchshare.serving.served import check, whole
from torchshare.serving.serving import Serving
from torchshare.training import pytree
from torchshare.training.batches import map_rows


class RequestBatch:
    """Requests that a job answers together; one, unless `Job.requests` was given a `max_batch`. In the job's thread.
    If a program drops it without an answer, its requests fail."""

    requests: Sequence[Request] = ()

    def __init__(self, serving: Serving, requests: Sequence[Request]) -> None:
        """Raises Exception if the data cannot be read or joined."""
        self._serving = serving
        self._began = time.monotonic_ns()
        self._rows = [rows_of(each.data) for each in requests]
        self.data = requests[0].data if len(requests) == 1 else _joined([each.data for each in requests])
        """The data of one request, or that of all, joined along the first dimension of each tensor."""
        self.requests = requests
        serving.batches.add(self)
        serving.begin_request()
        self._is_open = True

    _is_open = False

    @property
    def rows(self) -> int:
        """Rows of the requests; 1 for each that has no tensors."""
        return sum(self._rows)

    def answer(self, output: Any) -> None:
        """Gives each request its rows of `output`, which has as many rows as `data`; a single request gets all of it.
        Waits until the device has computed it.

        Raises:
            ValueError: if there are several requests, and a tensor of the output has another number of rows.
        """
        self._serving.check_thread()
        answers = [output] if len(self.requests) == 1 else self._split(output)
        self._serving.synchronize()
        for request, answer in zip(self.requests, answers, strict=True):
            self._give(request, answer)
        self._end_if_done()

    def answer_with(self, function: Callable[[Any], Any]) -> None:
        """Answers with `function(data)`, so that a request that fails fails alone: if `function` raises an exception
        for several requests, or returns another number of rows or no tensor with rows, it is called for each by itself.
        Those for which it raises get the exception; the loop goes on.

        Raises:
            Exception: what `function` raised, if the job is cancelled or its device is lost.
        """
        self._serving.check_thread()
        check(self._serving.name, function)
        try:
            self.answer(self._with_rows(whole(self._serving, function(self.data))))
        except Exception as error:
            if self._serving.is_ending():
                raise
            if len(self.requests) == 1:
                self.fail(error)
                return
            self._serving.say_split(len(self.requests), error)
        else:
            return
        for request in self.requests:
            if not request.done():
                self._answer_alone(request, function)
        self._end_if_done()

    def _answer_alone(self, request: Request, function: Callable[[Any], Any]) -> None:
        try:
            output = whole(self._serving, function(request.data))
            self._serving.synchronize()
        except Exception as error:
            if self._serving.is_ending():
                raise
            self._serving.fail([request], error)
        else:
            self._give(request, output)

    def _give(self, request: Request, answer: Any) -> None:
        if request._give(answer) or request._has_left():
            self._serving.answered(request._arrived, self._began)

    def fail(self, error: BaseException) -> None:
        """Gives each request that has no answer this error, which `Request.result` raises."""
        self._serving.check_thread()
        self._serving.fail(self.requests, error)
        self.end()

    def end(self) -> None:
        """Called when the job is done with the requests: lower jobs may run."""
        if self._is_open:
            self._is_open = False
            self._serving.end_request()

    def _end_if_done(self) -> None:
        if all(request.done() for request in self.requests):
            self.end()

    def __del__(self) -> None:
        self._serving.leave_out(self.requests, "it was dropped")
        self.end()

    def _with_rows(self, output: Any) -> Any:
        """Raises ValueError for an output from which several requests cannot get their own part."""
        if len(self.requests) > 1 and next(pytree.tensors(output), None) is None:
            raise ValueError(f"{self._serving.name}: the answer must have a tensor of {self.rows} rows, got {output!r}")
        return output

    def _split(self, output: Any) -> list[Any]:
        for path, tensor in pytree.tensors(output, "the answer"):
            if tensor.size(0) != self.rows:
                raise ValueError(
                    f"{self._serving.name}: {path} must have {self.rows} rows, as the requests have, "
                    f"got {tensor.size(0)}"
                )
        ends = itertools.accumulate(self._rows)
        return [map_rows(output, end - rows, end) for rows, end in zip(self._rows, ends, strict=True)]


def rows_of(data: Any) -> int:
    """Rows of a request: those of its first tensor; 1 without tensors."""
    return next((tensor.size(0) for _, tensor in pytree.tensors(data)), 1)


class Together:
    """The data of requests that one batch may have."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows = 0
        self._shape: list[Any] | None = None

    @property
    def is_full(self) -> bool:
        return self._rows >= self._max_rows

    def add(self, data: Any) -> bool:
        """Adds the data of a request if it fits, as the first one does if it can be read. Returns whether it fits."""
        try:
            rows, shape = rows_of(data), _shape_of(data)
        except Exception:  # of a tensor's own class, for example; the request may be answered by itself
            return False
        fits = self._shape is None or (self._rows + rows <= self._max_rows and _are_alike(shape, self._shape))
        if fits:
            self._rows += rows
            self._shape = shape
        return fits


def _shape_of(data: Any) -> list[Any]:
    """Requests whose shapes are alike can be joined."""
    shape: list[Any] = []

    def add(leaf: Any) -> None:
        joins = (
            isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested and leaf.dim() > 0
        )
        shape.append((leaf.shape[1:], leaf.dtype, leaf.device) if joins else (type(leaf), leaf))

    pytree.map_leaves(add, data)
    return [type(data), *shape]


def _are_alike(shape: list[Any], other: list[Any]) -> bool:
    try:
        return len(shape) == len(other) and all(map(operator.eq, shape, other))
    except Exception:  # of objects such as arrays, which are equal element by element
        return False


def _joined(data: Sequence[Any]) -> Any:
    columns = zip(*(dict(pytree.tensors(each)).values() for each in data), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return pytree.map_tensors(lambda _: next(joined), data[0])
