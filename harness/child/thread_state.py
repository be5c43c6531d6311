"""What belongs to one thread of the watched program, as the watch knows it."""

import threading
from typing import Any

from .calling_thread import current_thread_name, python_thread
from .log import json_text

#: So many kinds are counted apart in one thread; those that come later share one count a point.
_KINDS = 4096


class ThreadState(threading.local):
    """What the recorder and the probes keep per thread.

    Attributes:
        tid: native id, fetched once (a system call).
        phase: the workload's current phase in this thread.
        compiles: ids of the dynamo compiles that this thread is inside of, innermost last.
        traces: how many FX traces this thread is inside of.
        backward_compiles: how many lazy backward compiles it is inside of.
        counts: events of one kind so far, for ``worth_recording``.
        said: the thread's start is written, or there is none to be written.
        known: an event that is kept tells what Python calls the thread.
    """

    traces = 0
    backward_compiles = 0
    phase: str | None = None
    said = False
    known = False

    def __init__(self) -> None:
        self.tid = threading.get_native_id()
        self.compiles: list[str] = []
        self.counts: dict[object, int] = {}
        self.scratch: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._named, self._name_text = "", '""'

    def name_text(self) -> str:
        """The thread's name, without secrets in it, as JSON. Each event has it."""
        thread = self._thread
        if thread is None:
            self._thread = thread = python_thread()
        if thread is None:
            return json_text(current_thread_name(self.tid))
        if thread.name != self._named:  # at first, and when the program has renamed it
            self._named, self._name_text = thread.name, json_text(current_thread_name(self.tid))
        return self._name_text

    def count(self, kind: object) -> int:
        """Count one more event of ``kind`` in this thread and return how many there are."""
        counts = self.counts
        before = counts.get(kind)
        if before is None:
            if len(counts) >= _KINDS:
                kind = kind[0] if isinstance(kind, tuple) else None
            before = counts.get(kind, 0)
        number = counts[kind] = before + 1
        return number
