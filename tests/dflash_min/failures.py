"""Parts of a run that fail, when and where a test needs them to."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from dflash_min.optim import Optimizer
    from dflash_min.targets.interface import TargetModel

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class BrokenError(Exception):
    """No error of the trainer's own."""


def failing(
    inner: Callable[[Argument], Result],
    error: BaseException,
    when: Callable[[Argument], bool],
    after: threading.Event | threading.Barrier | None = None,
) -> Callable[[Argument], Result]:
    """Wrap a function so that it waits for `after` and raises, where `when(its argument)`."""

    def wrapped(argument: Argument) -> Result:
        if when(argument):
            # A barrier that is not met raises by itself, and the index of the first to come is 0.
            assert after is None or after.wait(60) is not False
            raise error
        return inner(argument)

    return wrapped


def dying_after(
    batches: int, target: TargetModel, after: threading.Event | None = None
) -> BrokenError:
    """Let a target make so many batches, wait for `after`, and die; returns what it dies of."""
    error, calls = BrokenError("in a target"), []
    count = lambda ids: calls.append(ids) or len(calls) > batches  # noqa: E731
    target.features = failing(target.features, error, count, after)
    return error


class Clock:
    """What the trainer has for `time`: a test can let time pass."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._passed = self._between = 0.0

    def monotonic(self) -> float:
        self._passed += self._between
        return time.monotonic() + self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass before each look from now on, so that a limit set later passes too."""
        self._between = seconds


class PlainKernels:
    """What `FusedAdamW` is to an optimiser, on a CPU: it refuses what is not finite by itself."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.taken: list[int] = []
        """Of each update that was not refused, the number that AdamW knows it by."""
        self._parameters = parameters
        self._gradients: list[Tensor] = []
        self._norm = torch.tensor(math.nan)

    def clip(self, gradients: Sequence[Tensor], *, weight: float, max_norm: float) -> Tensor:
        del max_norm
        self._gradients = [g.float() / weight for g in gradients]
        self._norm = torch.stack([g.square().sum() for g in self._gradients]).sum().sqrt()
        return self._norm

    @torch.no_grad()
    def update(self, *, t: int, lr: float, **_: object) -> None:
        if self._norm.isfinite():
            self.taken.append(t)
            for p, g in zip(self._parameters, self._gradients, strict=True):
                p.sub_((lr * g / self._norm).to(p.dtype))


def with_kernels(optimizer: Optimizer) -> PlainKernels:
    """Let an optimiser work as with fused kernels, whose numbers are asked for later."""
    kernels = PlainKernels(optimizer._parameters)
    for master in optimizer._masters:
        optimizer._adamw.state[master]["step"] = torch.tensor(0.0)
    optimizer._fused = kernels
    return kernels


@contextlib.contextmanager
def disk_that_fills_up() -> Iterator[Callable[[int], None]]:
    """Give what lets no file become larger than so many bytes; Python ignores SIGXFSZ.

    Python compiles no module into a file meanwhile: it would take one that was cut short for whole
    (gh-126606), and so would every later process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = before
