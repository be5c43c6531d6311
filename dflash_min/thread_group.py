"""Threads that end together: all go on, or all stop when one fails or a stop is asked for."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Literal

from dflash_min.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Mail = threading.Thread | Literal["stop", "failed"]
"""The first is a thread that ends."""


_UNHALTED_SHARE: Final = 0.8
"""Of the time for a stop, in which threads may end by themselves; then they are halted."""
_WAKE_S: Final = 1.0
"""Seconds after which the main thread looks up though nothing has come. A signal that arrives right
before it falls asleep does not wake it (CPython, `PyThread_acquire_lock_timed`: the C handler only
sets a flag, which is looked at before the sleep and when a signal interrupts it)."""


class ThreadGroup:
    """Named threads around one `halt`, which ends them. Runs once."""

    def __init__(
        self,
        works: Mapping[str, Callable[[], None]],
        halt: Callable[[float], None],
        *,
        grace_s: float,
        patience_s: float,
    ) -> None:
        """Prepare the threads without starting them.

        Args:
            works: what each thread does, by its name, in the order that they start in. A work ends
                early with `Stopped` where `halt` has ended what it waits for.
            halt: ends all works, or, if it has to, breaks off what they wait for, by the moment of
                the monotonic clock that it is given. Called by any thread, maybe several times.
            grace_s: seconds from when a stop is asked for until `run` returns at the latest.
            patience_s: the same from when the first thread fails.
        """
        self._threads = [
            threading.Thread(target=self._body, args=(name, work), name=name)
            for name, work in works.items()
        ]
        self._halt_by = halt
        self._grace_s = grace_s
        self._patience_s = patience_s
        self._errors: list[BaseException] = []
        self._errors_lock = threading.Lock()
        self._stopping = False
        # Its put may be called in a signal handler that interrupts its get.
        self._mail: queue.SimpleQueue[_Mail] = queue.SimpleQueue()

    def run(self) -> None:
        """Start all threads, and return when all have ended or were left behind.

        After `stop`, after a failure and after Ctrl-C, a thread that does not end in time, in a
        compile that takes minutes for example, is left behind.

        Raises:
            BaseException: what interrupts the wait, as Ctrl-C does, or keeps a thread from
                starting, once all others have been told to end. Not what a thread raises: see
                `failure`. A second Ctrl-C ends the wait at once.
        """
        try:
            for thread in self._threads:
                thread.start()
            self._wait_for_all(math.inf)
        except BaseException:
            until = time.monotonic() + self._grace_s
            self._halt_by(until)
            self._wait_for_all(until, halted=True)
            raise

    @property
    def left_behind(self) -> list[str]:
        """Names of the threads that have not ended."""
        return [thread.name for thread in self._threads if thread.is_alive()]

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stopping

    def stop(self) -> None:
        """Ask for an end in time. May be called in a signal handler."""
        self._stopping = True
        self._mail.put("stop")

    def halt(self) -> None:
        """End all threads from now on, in the time for a stop. Any of them may call it."""
        self._halt_by(time.monotonic() + self._grace_s)

    def add(self, error: Exception) -> None:
        """Keep an error that is found at the end, unless a thread has told the same."""
        with self._errors_lock:
            told = [(type(other), str(other)) for other in self._errors]
            if (type(error), str(error)) not in told:
                self._errors.append(error)

    def failure(self) -> BaseExceptionGroup[BaseException] | None:
        """Return what each failed thread raised, in order of time; None if none did.

        It is an `ExceptionGroup` unless one of the errors is no `Exception`.
        """
        with self._errors_lock:
            errors: Sequence[BaseException] = list(self._errors)
        if not errors:
            return None
        threads = "1 thread" if len(errors) == 1 else f"{len(errors)} threads"
        group = BaseExceptionGroup(f"{threads} failed", errors)
        if left := self.left_behind:
            group.add_note(f"left behind, since they did not end in time: {', '.join(left)}")
        return group

    def _wait_for_all(self, until: float, *, halted: bool = False) -> None:
        """Wait for the end of every thread that was started, but not for ever.

        Args:
            until: when to leave behind those that are still there, by the monotonic clock; sooner
                if a stop is asked for or a thread fails meanwhile.
            halted: whether they have been told to end already.
        """
        while self.left_behind:
            wake_at = until if halted else until - (1 - _UNHALTED_SHARE) * self._grace_s
            try:
                mail = self._mail.get(timeout=min(max(wake_at - time.monotonic(), 0.0), _WAKE_S))
            except queue.Empty:
                if time.monotonic() < wake_at:
                    continue
                if halted:
                    return
                self._halt_by(until)
                halted = True
                continue
            if mail == "stop":
                until = min(until, time.monotonic() + self._grace_s)
            elif mail == "failed":
                until = min(until, time.monotonic() + self._patience_s)
            else:
                mail.join()

    def _body(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  # told by failure
            self._fail(name, error)
        finally:
            self._mail.put(threading.current_thread())

    def _fail(self, name: str, error: BaseException) -> None:
        """Keep a thread's error and stop the other threads."""
        error.add_note(f"raised in thread {name}")
        with self._errors_lock:
            self._errors.append(error)
        self._mail.put("failed")
        self.halt()
