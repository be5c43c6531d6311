"""Threads that end together, without a trainer around them."""

from __future__ import annotations

import signal
import threading

import pytest

from dflash_min import thread_group
from dflash_min.errors import Stopped
from dflash_min.thread_group import ThreadGroup

from .failures import BrokenError


class Works:
    """Works that wait for a halt, or for ever, and what became of them."""

    def __init__(self, *, grace_s: float = 60.0, patience_s: float = 60.0, **works) -> None:
        self.halted, self.released = threading.Event(), threading.Event()
        self.halts: list[float] = []
        self.group = ThreadGroup(works, self.halt, grace_s=grace_s, patience_s=patience_s)

    def halt(self, until: float) -> None:
        self.halts.append(until - thread_group.time.monotonic())
        self.halted.set()

    def until_halted(self) -> None:
        assert self.halted.wait(60)
        raise Stopped

    def until_released(self) -> None:
        assert self.released.wait(60)


class CountingClock:
    """The group's clock: a step later at each look, and still from the halt to a thread's end.

    How long the machine takes to wake one thread and to end another is then no matter.
    """

    def __init__(self, works: Works, thread: str, step_s: float) -> None:
        self._works = works
        (self._thread,) = (one for one in works.group._threads if one.name == thread)
        self._now_s, self._step_s = 0.0, step_s

    def monotonic(self) -> float:
        ended = self._thread.ident is not None and not self._thread.is_alive()
        if ended or not self._works.halted.is_set():
            self._now_s += self._step_s
        return self._now_s


@pytest.fixture
def make():
    made: list[Works] = []

    def one(*, grace_s=60.0, patience_s=60.0, **works) -> Works:
        # A work is called with its Works, which is not there before it.
        bound = {name: lambda w=work: w(made[-1]) for name, work in works.items()}
        made.append(Works(grace_s=grace_s, patience_s=patience_s, **bound))
        return made[-1]

    yield one
    for works in made:
        works.released.set()
        for thread in works.group._threads:
            if thread.ident is not None:
                thread.join(60)


def test_threads_run_by_their_names_and_end_without_a_halt(make):
    names = []
    works = make(**dict.fromkeys("ab", lambda _: names.append(threading.current_thread().name)))
    works.group.run()
    assert (sorted(names), works.halts) == (["a", "b"], [])
    assert (works.group.failure(), works.group.left_behind) == (None, [])


def test_a_failure_halts_the_others_and_every_error_is_told_in_order(make):
    first, second = BrokenError("first"), BrokenError("second")

    def fails(_):
        raise first

    def fails_once_halted(works):
        assert works.halted.wait(60)
        raise second

    works = make(a=fails, b=fails_once_halted, c=Works.until_halted)
    works.group.run()
    failure = works.group.failure()
    assert isinstance(failure, ExceptionGroup)
    assert failure.exceptions == (first, second)
    assert (str(failure), first.__notes__) == (
        "2 threads failed (2 sub-exceptions)",
        ["raised in thread a"],
    )


def test_what_is_found_at_the_end_is_told_once(make):
    def fails(_):
        raise BrokenError("same")

    works = make(a=fails)
    works.group.run()
    for text in ("same", "other", "other"):
        works.group.add(BrokenError(text))
    assert [str(error) for error in works.group.failure().exceptions] == ["same", "other"]


def test_a_stop_before_the_start_halts_when_most_of_its_time_is_over(make, monkeypatch):
    works = make(grace_s=0.01, a=Works.until_halted)
    monkeypatch.setattr(thread_group, "time", CountingClock(works, "a", step_s=0.0005))
    works.group.stop()
    assert works.group.stopping
    works.group.run()
    (left,) = works.halts
    assert 0 < left <= 0.002
    assert works.group.left_behind == []


@pytest.mark.parametrize("why", ["a stop", "a failure"])
def test_a_thread_that_does_not_end_in_time_is_left_behind(make, monkeypatch, why):
    def fails(_):
        raise BrokenError

    others = {"a": fails} if why == "a failure" else {"a": Works.until_halted}
    works = make(grace_s=0.01, patience_s=0.01, b=Works.until_released, **others)
    monkeypatch.setattr(thread_group, "time", CountingClock(works, "a", step_s=0.0005))
    if why == "a stop":
        works.group.stop()
    works.group.run()
    assert works.group.left_behind == ["b"]
    if why == "a failure":
        assert works.group.failure().__notes__ == ["left behind, since they did not end in time: b"]


def test_a_thread_that_cannot_start_ends_those_that_have(make, monkeypatch):
    start = threading.Thread.start

    def starting(thread):
        if thread.name == "b":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    works = make(a=Works.until_halted, b=Works.until_halted)
    with pytest.raises(RuntimeError, match="can't start"):
        works.group.run()
    assert (len(works.halts), works.group.left_behind) == (1, [])


def test_a_second_interrupt_ends_the_wait_that_the_first_began(make):
    def interrupts(works):
        main = threading.main_thread().ident
        signal.pthread_kill(main, signal.SIGINT)
        assert works.halted.wait(60)
        signal.pthread_kill(main, signal.SIGINT)
        works.until_released()

    works = make(a=interrupts)
    with pytest.raises(KeyboardInterrupt):
        works.group.run()
    assert works.group.left_behind == ["a"]
