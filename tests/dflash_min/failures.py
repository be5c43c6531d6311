"""Parts of a run that fail, when and where a test needs them to."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

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
        self._passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._passed

    def advance(self, seconds: float) -> None:
        self._passed += seconds


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
