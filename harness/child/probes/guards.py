"""Guard misses, seen on the calling thread at the moment that they happen.

Dynamo calls one process-wide hook after every evaluation of a frame's guards. An exception that
leaves the hook ends the process, and a signal handler can raise one in any Python function, even
before its first line. So the hook is a dict's own ``__getitem__``: a hit is a lookup in C, and a
miss calls Python through ctypes, which lets no exception pass.
"""

import _thread
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .. import caches, codes, context, torch_code, unseen
from .. import torch_symbols as symbols
from ..recorder import Recorder, worth_recording
from ..settings import Settings
from . import Unavailable

_GRACE_S = 0.0005


class Conflict(Unavailable):
    """Somebody else has the one place for the hook."""

    state = "conflict"


def _hook(recorder: Recorder) -> Callable[[bool], bool]:
    """Answers True to a hit; records a miss and answers False, as if nobody had been asked."""

    def record(_hit: bool) -> bool:  # noqa: FBT001 - dynamo's calling convention
        try:
            _record_miss(recorder, sys._getframe(1))  # noqa: SLF001 - the caller is the clue
        except Exception:  # noqa: BLE001 - an exception here would end the process
            recorder.lost += 1
        except BaseException as error:  # noqa: BLE001
            # Ctrl-C, or a handler's SystemExit, came just now. It cannot be let through here, so it
            # is made to come again once this function has returned.
            arguments = (error, threading.get_ident(), record.__code__)
            _thread.start_new_thread(_raise_again, arguments)
        return False

    on_miss = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.py_object)(record)
    answers = type("OnGuard", (dict,), {"__missing__": on_miss})({True: True})
    hook: Callable[[bool], bool] = answers.__getitem__
    return hook


def _raise_again(error: BaseException, ident: int, code: CodeType) -> None:
    """Raise ``error`` in the thread ``ident`` as soon as that runs no frame of ``code``."""
    while _runs(ident, code):
        time.sleep(_GRACE_S)
    # Only a class can be raised in another thread; Python calls it for the exception itself.
    kind = type(error)
    again = type(kind.__name__, (kind,), {"__new__": lambda _: error})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(again))


def _runs(ident: int, code: CodeType) -> bool:
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - public all but in name
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class GuardsProbe:
    """Sets dynamo's guard-complete hook."""

    name = "guards"
    modules: tuple[str, ...] = (symbols.EVAL_FRAME_MODULE, symbols.SKIP_FILES_CHECK.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Set the hook. Raises Conflict if one is set already; that one stays."""
        symbols.CACHE_ENTRIES.get()
        set_hook = symbols.SET_GUARD_HOOK.get()
        hook = _hook(recorder)
        previous = set_hook(hook)
        if previous is not None:
            set_hook(previous)
            raise Conflict(f"dynamo's guard-complete hook is taken by {previous!r}")
        unseen.hide_own_frames()
        recorder.at_end.append(lambda: _report_replaced(recorder, hook))


def _report_replaced(recorder: Recorder, hook: object) -> None:
    set_hook = symbols.SET_GUARD_HOOK.get()
    current = set_hook(None)
    set_hook(current)
    if current is not hook:
        reason = f"the program put {current!r} in its place"
        recorder.emit("probe", {"name": PROBE.name, "state": "conflict", "reason": reason})


def _record_miss(recorder: Recorder, frame: FrameType) -> None:
    function = None
    if torch_code.is_compile_wrapper(frame.f_code):
        function = torch_code.compiled_function(frame)
    else:
        function = torch_code.called_module_function(frame)
    code, target = torch_code.code_of(function)
    described = None if code is None else codes.describe(code, target)
    count = recorder.local.count(("guard_miss", described and described["id"]))
    if not worth_recording(count):
        return
    data: dict[str, Any] = {"code": described, "context": context.describe(), "count": count}
    if code is not None and described is not None:
        data["entries"] = len(caches.entries_of(code, described))
    recorder.emit("guard_miss", data, stack=True)
    recorder.look_at_all_threads()


PROBE = GuardsProbe()
