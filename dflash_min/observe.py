"""What the trainer tells whoever looks on: its phases, its steps, and its threads' waits.

A caller sets an observer before training; until then nothing is told to nobody. Errors are not told
here: they leave the trainer as the exceptions that they are.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Awaited = Literal["room", "batch", "drafters"]
"""What a thread waits for: a target for room in a queue, a drafter for a batch, or for the other
drafters, before gradients are averaged and after the step."""

_NOTHING: Final = contextlib.nullcontext()


class Observer(Protocol):
    """Looks on. Its methods are called on the thread that does the work, several at a time."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context that lasts as long as a phase: "warmup", "train" or "evaluate"."""
        ...

    def step(self, step: int, tokens: int, seconds: float) -> None:
        """Note that the calling drafter thread has finished a step on `tokens` tokens of text."""
        ...

    def waiting(self, what: Awaited) -> AbstractContextManager[None]:
        """Return a context that lasts as long as the calling thread waits for another."""
        ...


class _Nobody:
    def phase(self, name: str) -> AbstractContextManager[None]:
        del name
        return _NOTHING

    def step(self, step: int, tokens: int, seconds: float) -> None:
        pass

    def waiting(self, what: Awaited) -> AbstractContextManager[None]:
        del what
        return _NOTHING


_observer: Observer = _Nobody()


def set_observer(observer: Observer | None) -> None:
    """Let `observer` look on from now; None lets nobody."""
    global _observer  # noqa: PLW0603  # one trainer, one process, one observer
    _observer = _Nobody() if observer is None else observer


def phase(name: str) -> AbstractContextManager[None]:
    """Return the context of a phase, to be entered on the main thread."""
    return _observer.phase(name)


def step(step: int, tokens: int, seconds: float) -> None:
    """Tell of a finished step of the calling drafter thread."""
    _observer.step(step, tokens, seconds)


def waiting(what: Awaited) -> AbstractContextManager[None]:
    """Return the context of the calling thread's wait. It is entered even if there is none."""
    return _observer.waiting(what)
