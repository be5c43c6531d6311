"""Calls of ``torch._dynamo.reset``, and which other threads they come under.

A reset frees the entries and guards of every code object. A call of compiled code that another
thread is in the middle of goes on using them.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import nesting, torch_code
from .. import torch_symbols as symbols
from ..bounds import worth_recording
from ..errors import in_words
from ..recorder import Recorder
from ..settings import Settings


class ResetProbe:
    """Wraps ``torch._dynamo.reset``, which ``torch.compiler.reset`` calls too."""

    name = "reset"
    modules: tuple[str, ...] = (symbols.RESET.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch has no such function."""
        symbols.RESET.replace(_wrap(symbols.RESET.get(), recorder))


def _wrap(original: Callable[[], Any], recorder: Recorder) -> Callable[[], Any]:
    @functools.wraps(original)
    def reset() -> Any:
        begun = _record(recorder, "enter")
        error = ""
        try:
            return original()
        except Exception as raised:
            error = in_words(raised)
            raise
        finally:
            _record(recorder, "exit", begun=begun, error=error)
            recorder.look_at_all_threads()

    return symbols.stands_for(original, reset)


def _record(recorder: Recorder, edge: str, *, begun: bool = True, error: str = "") -> bool:
    """Record a reset's beginning or end; return whether it was written. Never raises."""
    try:
        local = recorder.local
        data = {
            "calling_tids": calling(local.tid),
            "compiling_tids": nesting.others(recorder.compiling, local.tid),
            "error": error,
        }
        # Of many alike the first count, and those that meet a call; an end goes with its beginning.
        kind = ("reset", bool(data["calling_tids"]), bool(data["compiling_tids"]))
        wanted = begun if edge == "exit" else worth_recording(local.count(kind))
        if edge == "exit" and not begun and (data["calling_tids"] or error):
            wanted = worth_recording(local.count(("reset, ended", kind, error)))
        return wanted and recorder.emit("reset", data, edge=edge, stack=True) > 0
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1
        return False


def calling(own: int) -> list[int]:
    """Native ids of the other threads that are inside a call of compiled code just now."""
    native = {t.ident: t.native_id for t in list(threading._active.values())}  # type: ignore[attr-defined]  # noqa: SLF001
    found = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001
        tid = native.get(ident)
        if tid is None or tid == own:
            continue
        if torch_code.compile_wrapper_around(frame) is not None:
            found.append(tid)
    return sorted(found)


PROBE = ResetProbe()
