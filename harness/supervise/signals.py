"""Signals that the parent gets while the program runs: Ctrl-C, and being told to end."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Protocol

# A terminal that vanishes sends SIGHUP from the shell and from the kernel: that is one word.
_ONE_WORD_S = 1.0

Handler = signal.Handlers | Callable[[int, FrameType | None], None]


class PassOn(Protocol):
    """Passes a signal on to the program."""

    def __call__(self, number: int, *, again: bool) -> bool:
        """``again``: end the program at once. Returns whether the program still ran."""


class Asked:
    """What the parent was asked to do to the program.

    Attributes:
        interrupted: to interrupt it, from the keyboard.
    """

    def __init__(self, pass_on: PassOn) -> None:
        self._pass_on = pass_on
        self._ready = False
        self._early: list[int] = []
        self._signals = 0
        self._told_at = float("-inf")
        self.interrupted = False

    def ready(self) -> None:
        """The program runs: pass on what came before, and from now on at once."""
        self._ready = True
        for number in self._early:
            self._handle(number)

    def signalled(self, number: int) -> None:
        """Take in a signal."""
        if self._ready:
            self._handle(number)
        else:
            self._early.append(number)

    def _handle(self, number: int) -> None:
        if number != signal.SIGINT:
            before, self._told_at = self._told_at, time.monotonic()
            if self._told_at - before < _ONE_WORD_S:
                return
        if not self._pass_on(number, again=self._signals > 0):  # the program had ended by itself
            return
        self._signals += 1
        if number == signal.SIGINT:
            self.interrupted = True


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let SIGTERM and SIGHUP pass unheard: the program has ended, and its report is being made.

    Outside the main thread, and where they are ignored already, nothing changes.
    """
    with _handled((signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield


@contextlib.contextmanager
def passing_on_signals(asked: Asked) -> Iterator[None]:
    """Let ``asked`` have SIGINT, SIGTERM and SIGHUP, as far as we are in the main thread.

    One that is ignored stays ignored: ``nohup`` means that the terminal may go.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        asked.signalled(number)

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), handle):
        yield


@contextlib.contextmanager
def _handled(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Have ``handler`` for signals that are not ignored, and what was there before afterwards."""
    before = {}
    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    except ValueError:  # not the main thread: the caller's handlers stay
        pass
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
