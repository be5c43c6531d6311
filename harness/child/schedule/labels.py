"""Which of the program's threads is which: ``main``, and ``t1``, ``t2`` ... as they are started."""

import threading
import weakref

from ..calling_thread import registered_thread
from .order import MAIN


class Labels:
    """Names the threads of this process. Whoever drives it keeps its calls apart.

    Threads are named in the order in which the program starts them, so that they have the same
    names in every run. Threads that it did not start (autograd's) have none.
    """

    def __init__(self) -> None:
        self._started = 0
        self._numbers: weakref.WeakKeyDictionary[threading.Thread, int] = (
            weakref.WeakKeyDictionary()
        )
        self._seen: dict[int, weakref.ref[threading.Thread]] = {}

    def number(self, thread: threading.Thread) -> None:
        """The program starts ``thread``: it is the next one."""
        self._started += 1
        self._numbers[thread] = self._started

    def of_caller(self, tid: int) -> str:
        """The calling thread's name; empty if it has none. ``tid`` is its native id."""
        thread = registered_thread()
        if thread is threading.main_thread():
            return MAIN
        number = self._numbers.get(thread) if thread is not None else None
        if thread is None or number is None:
            return ""
        known = self._seen.get(tid)
        if known is None or known() is not thread:  # the system gives a dead thread's id again
            self._seen[tid] = weakref.ref(thread)
        return f"t{number}"

    def has_ended(self, tid: int) -> bool:
        """Whether a thread that was asked for its name, and has one, has ended since."""
        known = self._seen.get(tid)
        if known is None:
            return False
        thread = known()
        return thread is None or not thread.is_alive()
