"""Requests that a job answers together."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchshare.context.errors import described
from torchshare.serving.request import Request
from torchshare.serving.served import check, whole
from torchshare.serving.serving import Serving
from torchshare.training import pytree
from torchshare.training.batches import map_rows

log = logging.getLogger("torchshare")


class RequestBatch:
    """Requests that a job answers together; one, unless `Job.requests` was given a `max_batch`. In the job's thread.
    If a program drops it without an answer, its requests fail."""

    def __init__(self, serving: Serving, requests: Sequence[Request], rows: Sequence[int]) -> None:
        self._serving = serving
        self._rows = rows
        self._began = time.monotonic_ns()
        self.requests = requests
        self.data = requests[0].data if len(requests) == 1 else _joined([each.data for each in requests])
        """The data of one request, or that of all, joined along the first dimension of each tensor."""
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
            self._say_split(error)
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
        if request._give(answer):
            self._serving.answered(request._arrived, self._began)

    def _say_split(self, error: Exception) -> None:
        if not self._serving.has_split:
            self._serving.has_split = True
            why = described(error).partition("\n")[0]
            log.warning("%s: a batch of %d requests failed and is answered one by one, as each that fails will be: %s",
                        self._serving.name, len(self.requests), why)  # fmt: skip

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


def shape_of(data: Any) -> list[Any]:
    """Requests whose shapes are equal can be joined."""
    shape: list[Any] = []

    def add(leaf: Any) -> None:
        joins = isinstance(leaf, torch.Tensor) and leaf.dim() > 0
        shape.append((leaf.shape[1:], leaf.dtype, leaf.device) if joins else (type(leaf), leaf))

    pytree.map_leaves(add, data)
    return [type(data), *shape]


def _joined(data: Sequence[Any]) -> Any:
    columns = zip(*(dict(pytree.tensors(each)).values() for each in data), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return pytree.map_tensors(lambda _: next(joined), data[0])
