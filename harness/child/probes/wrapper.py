"""Calls of compiled code: each thread's first, and some after anything of note happened.

``compile_wrapper``, which ``torch.compile`` returns, asks ``is_fx_symbolic_tracing`` on each call
before it runs. That question is where this probe listens: it is replaced before dynamo is imported,
so dynamo knows no other function and traces what it traced before. A cached call costs one
comparison with a number of the calling thread's own; a thread is looked at while its number is not
the recorder's.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import codes, context, nesting
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings

# Calls looked at in one thread after a change of epoch: enough for a step that calls a few compiled
# functions, few enough to cost nothing.
_LOOKS = 8
# Looks at one code object in one thread that are all written; later only powers of two are.
_ALWAYS = 64


class WrapperProbe:
    """Listens at ``torch.fx._symbolic_trace.is_fx_symbolic_tracing``."""

    name = "wrapper"
    modules: tuple[str, ...] = (symbols.FX_TRACING.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Replace the function. Raises Unavailable if this torch has none."""
        original = symbols.FX_TRACING.get()
        watch = _Watch(recorder)
        make = _ask_process_flag if symbols.FX_FLAG.find() is not None else _ask
        symbols.FX_TRACING.replace(make(recorder, watch, original))


def _ask_process_flag(
    recorder: Recorder, watch: "_Watch", original: Callable[[], bool]
) -> Callable[[], bool]:
    names = vars(sys.modules[symbols.FX_FLAG.module])
    flag = symbols.FX_FLAG.name

    # ``original`` is "the flag is set and no compile is going on", so it need not be asked while
    # the flag is clear: that is a third of this probe's cost.
    @functools.wraps(original)
    def is_fx_symbolic_tracing() -> bool:
        if recorder.local.epoch != recorder.epoch:
            watch.look(sys._getframe(1))  # noqa: SLF001 - the caller tells which code is called
        if not names[flag]:
            return False
        tracing = original()
        if tracing:
            watch.flagged(sys._getframe(1))  # noqa: SLF001
        return tracing

    return is_fx_symbolic_tracing


def _ask(recorder: Recorder, watch: "_Watch", original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_fx_symbolic_tracing() -> bool:
        if recorder.local.epoch != recorder.epoch:
            watch.look(sys._getframe(1))  # noqa: SLF001 - the caller tells which code is called
        tracing = original()
        if tracing:
            watch.flagged(sys._getframe(1))  # noqa: SLF001
        return tracing

    return is_fx_symbolic_tracing


class _Watch:
    """What happens off the fast path. Nothing here raises."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def look(self, frame: FrameType) -> None:
        """Record the call if its thread has not called this code since the epoch began."""
        try:
            if symbols.is_compile_wrapper(frame.f_code):
                self._look(frame)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def flagged(self, frame: FrameType) -> None:
        """Record that dynamo saw the FX-tracing flag set: the call raises or runs eager."""
        try:
            if symbols.is_compile_wrapper(frame.f_code):
                self._flagged(frame)
        except Exception:  # noqa: BLE001
            self._recorder.lost += 1

    def _look(self, frame: FrameType) -> None:
        recorder, local = self._recorder, self._recorder.local
        epoch = recorder.epoch
        if local.scratch.get("wrapper_epoch") != epoch:
            local.scratch["wrapper_epoch"] = epoch
            local.scratch["wrapper_seen"] = set()
            local.looks = _LOOKS
        local.looks -= 1
        if local.looks <= 0:
            local.epoch = epoch
        code = codes.describe_function(symbols.compiled_function(frame))
        number = 0 if code is None else code["id"]
        if number in local.scratch["wrapper_seen"]:
            return
        local.scratch["wrapper_seen"].add(number)
        # A thread's first call of the program's code is its first whatever torch called before.
        internal = code is not None and code["internal"]
        first = local.count(("wrapper_first", internal)) == 1
        count = local.count(("wrapper", number))
        if count > _ALWAYS and count & (count - 1):
            return
        data: dict[str, Any] = {"code": code, "first": first, "count": count}
        if first:
            data["context"] = context.describe()
        recorder.emit("wrapper", data, stack=True)

    def _flagged(self, frame: FrameType) -> None:
        recorder, tid = self._recorder, self._recorder.local.tid
        code = codes.describe_function(symbols.compiled_function(frame))
        nested = _nested_outcome()
        data = {
            "code": code,
            "fx_flag": True,
            "nested": nested,
            "tracing_tids": nesting.inside(recorder.tracing),
            "compiling_tids": nesting.others(recorder.compiling, tid),
        }
        kind = ("flagged", code and code["id"], nested)
        recorder.emit_counted("wrapper", kind, data, stack=True)


def _nested_outcome() -> str:
    config: Any = sys.modules["torch._dynamo.config"]
    if config.force_compile_during_fx_trace:
        return ""
    return "raise" if config.error_on_nested_fx_trace else "eager"


PROBE = WrapperProbe()
