"""Reads of ``torch.compiler.is_compiling()`` that another thread's compile answers.

From torch 2.13 on a dynamo compile holds that flag for its whole length, and it is one for the
process: code that branches on it, in a thread that compiles nothing, takes the compiler's branch.
"""

import functools
import sys
from types import FrameType, FunctionType

from .. import nesting, torch_code
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable


class IsCompilingProbe:
    """Wraps ``torch.compiler.is_compiling``, before dynamo is imported and looks it up."""

    name = "is_compiling"
    modules: tuple[str, ...] = (symbols.READ_IS_COMPILING.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Wrap. Raises Unavailable if this torch has no such function, or it is too late.

        A compiled function that asks has a guard on the code object of what it asks.
        """
        original = symbols.READ_IS_COMPILING.get()
        if symbols.COMPILE_SESSION.find() is None:
            return  # up to torch 2.12 no compile sets the flag: there is nothing to see

        if settings.in_process:
            reason = "entries of dynamo's are for the code of torch's own function"
            raise Unavailable(f"it must be replaced before the program runs: {reason}")

        symbols.READ_IS_COMPILING.replace(_watched(original, recorder))


def _watched(original: FunctionType, recorder: Recorder) -> FunctionType:
    flags, flag = original.__globals__, symbols.IS_COMPILING.name
    look, frame_of = _look, sys._getframe  # noqa: SLF001 - who asks

    def is_compiling() -> bool:
        # A training step asks a hundred times, and torch's function asks TorchScript besides, which
        # never runs this one.
        if not flags.get(flag, True):
            return False
        answer: bool = original()
        if answer:
            look(recorder, frame_of(1))
        return answer

    # TorchScript compiles the text of torch's function, by the names that are known where this one
    # is: so it has torch's globals, and all that is its own in its closure.
    code, closure = is_compiling.__code__, is_compiling.__closure__
    watched = FunctionType(code, flags, original.__name__, None, closure)
    functools.update_wrapper(watched, original)
    return watched


def _look(recorder: Recorder, caller: FrameType) -> None:
    """Record a read outside the compiler. Never raises."""
    try:
        local = recorder.local
        # AOTAutograd compiles a backward on the thread that runs it, without dynamo.
        if local.compiles or local.traces or local.backward_compiles:
            return
        others = nesting.others(recorder.compiling, local.tid)
        if others and not torch_code.is_torchs(caller.f_code):
            where = (caller.f_code.co_filename, caller.f_lineno)
            data = {"compiling_tids": others}
            recorder.emit_counted("is_compiling", where, data, stack=True)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


PROBE = IsCompilingProbe()
