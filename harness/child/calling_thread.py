"""Threads as Python and the system know them, without making oneself known to either.

``threading.current_thread()`` registers a dummy ``Thread`` for a thread that Python did not start,
autograd's say, and the program would find it in ``threading.enumerate()``.
"""

import os
import threading

from .privacy import mask_name


def registered_thread() -> threading.Thread | None:
    """The calling thread's ``Thread``, perhaps a dummy one; None if it has none."""
    # What threading.current_thread() reads; that call would add an entry.
    found: threading.Thread | None
    found = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return found


def python_thread() -> threading.Thread | None:
    """The calling thread's ``Thread``; None if Python did not start it: autograd's, say.

    Such a thread has no ``Thread`` object, or a dummy one made when somebody asked.
    """
    thread = registered_thread()
    return None if isinstance(thread, threading._DummyThread) else thread  # noqa: SLF001


def is_foreign_thread() -> bool:
    """Whether Python did not start the calling thread: autograd's, say."""
    return python_thread() is None


def current_thread_name(tid: int) -> str:
    """Name of the calling thread, whose native id is ``tid``, without secrets in it."""
    thread = python_thread()
    if thread is not None:
        return mask_name(thread.name)
    # A thread of C++ may have told the system its name: autograd's is "pt_autograd_" and a device
    # index (torch/csrc/autograd/engine.cpp). Without one it has the process's.
    system = _system_name(tid)
    if system and system != _system_name(os.getpid()):
        return system
    dummy = registered_thread()
    return dummy.name if dummy is not None else f"thread-{tid}"


def name_of(tid: int) -> str:
    """Name of a thread that Python started, by its native id, without secrets in it; or empty."""
    threads = list(threading._active.values())  # type: ignore[attr-defined]  # noqa: SLF001
    return next((mask_name(thread.name) for thread in threads if thread.native_id == tid), "")


def _system_name(tid: int) -> str:
    try:
        with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:  # not Linux
        return ""
