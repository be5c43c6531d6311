"""What the trainer tells whoever looks on: its phases and its steps.

A caller sets an observer before training; until then nothing is told to nobody. Errors are not told
here: they leave the trainer as the exceptions that they are.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Observer(Protocol):
    """Looks on. Its methods are called on the thread that does the work, several at a time."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context that lasts as long as a phase: "warmup", "train" or "evaluate"."""
        ...

    def step(self, step: int, tokens: int, seconds: float) -> None:
        """Note that the calling drafter thread has finished a step on `tokens` tokens of text."""
        ...


class _Nobody:
    def phase(self, name: str) -> AbstractContextManager[None]:
        del name
        return contextlib.nullcontext()

    def step(self, step: int, tokens: int, seconds: float) -> None:
        pass


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
