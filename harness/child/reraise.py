"""Raises an exception once more that came to a thread where it cannot be let through."""

import random
import sys
from types import CodeType, FrameType

from . import torch_code

_RANDOM = random.Random.setstate.__code__.co_filename


def raise_outside(barred: CodeType, error: BaseException) -> None:
    """Raise ``error`` in this thread again, in the next function that it enters.

    That ``error``, Ctrl-C or a signal handler's SystemExit, came inside a frame of ``barred``,
    whose caller lets nothing through. Functions that are entered there do not count, and neither do
    those of ``random``, which dynamo calls from C around a compile. What another thread makes this
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
    inside = any(caller.f_code is barred for caller in torch_code.outwards(frame))
    return not inside and frame.f_code.co_filename != _RANDOM
