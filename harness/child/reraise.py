"""Raises an exception once more that came to a thread where it cannot be let through."""

import gc
import random
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType

from . import torch_code

# Which of ``weakref`` and ``_weakrefset`` are called as objects die shows in no argument of theirs.
_SKIPPED = frozenset(
    function.__code__.co_filename
    for function in (random.Random.setstate, weakref.finalize.__call__, weakref.WeakSet.add)
)
# What ``inspect`` calls CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR, and CO_VARARGS.
_RESUMED = 0x20 | 0x80 | 0x200
_VARIADIC = 0x04


def raise_outside(barred: CodeType, error: BaseException) -> None:
    """Raise ``error`` in this thread again, in the next function that it enters.

    That ``error``, Ctrl-C or a signal handler's SystemExit, came inside a frame of ``barred``,
    whose caller lets nothing through. Functions that are entered there do not count, and neither do
    those of ``random``, which dynamo calls from C around a compile, nor what Python itself calls as
    objects die, since it prints what that raises and goes on: ``__del__``, gc's callbacks, a closed
    generator, a weak reference's callback. What another thread makes this one raise comes wherever
    this one lets go of the GIL, and 23 of 40 were lost so: dynamo takes what the Python function of
    a guard raises for a guard that failed, whoever raised it (462 of 462 raised there by a signal
    handler, torch 2.13 without a watch). After its guard hook it evaluates no guard before it has
    entered the frame, or its compiler.

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
    closed = {barred, *map(_code, gc.callbacks)}
    return not any(
        caller.f_code in closed
        or caller.f_code.co_filename in _SKIPPED
        or caller.f_code.co_name == "__del__"
        or _is_given_a_dead_reference(caller)
        for caller in torch_code.outwards(frame)
    )


def _code(function: Callable[..., object]) -> CodeType | None:
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def _is_given_a_dead_reference(frame: FrameType) -> bool:
    """Whether it is called as a weak reference's callback is: with that, and perhaps with self."""
    code = frame.f_code
    given = code.co_varnames[: min(code.co_argcount, 2)]
    if code.co_flags & _VARIADIC:
        given += code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1]
    held = [frame.f_locals.get(name) for name in given]
    held += [first for rest in held if isinstance(rest, tuple) for first in rest[:2]]
    return any(isinstance(one, weakref.ref) and one() is None for one in held)
