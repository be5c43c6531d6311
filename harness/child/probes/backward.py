"""Backward calls, and backward graphs compiled when a backward first needs them.

On the CPU a backward runs on the thread that called it. On CUDA it runs on one thread a device
that autograd owns and all callers share, so that thread compiles on others' behalf.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .. import nesting
from .. import torch_symbols as symbols
from ..bounds import worth_recording
from ..calling_thread import is_foreign_thread
from ..errors import in_words
from ..recorder import Recorder
from ..settings import Settings


class BackwardProbe:
    """Wraps autograd's entry to its engine and dynamo's callback around lazy backward compiles."""

    name = "backward"
    modules: tuple[str, ...] = (symbols.RUN_BACKWARD_BY_NAME.module, symbols.LAZY_BACKWARD.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks a symbol; nothing is wrapped then."""
        lazy_backward = symbols.LAZY_BACKWARD.get()
        install_callbacks = symbols.INSTALL_CALLBACKS.get()
        run = symbols.RUN_BACKWARD.get()
        by_name = symbols.RUN_BACKWARD_BY_NAME.get()
        watched = _wrap_run(run, recorder)
        symbols.RUN_BACKWARD.replace(watched)
        if by_name is run:
            symbols.RUN_BACKWARD_BY_NAME.replace(watched)
        symbols.INSTALL_CALLBACKS.replace(_wrap_install(install_callbacks, lazy_backward, recorder))


def _wrap_run(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        local = recorder.local
        if local.compiles or local.traces:  # AOTAutograd differentiates while it traces
            return original(*args, **kwargs)
        tid = local.tid
        nesting.enter(recorder.in_backward, tid)
        recorder.emit_counted("backward", None, {}, stack=True)
        try:
            return original(*args, **kwargs)
        except Exception as error:
            _failed(recorder, error)
            raise
        finally:
            nesting.leave(recorder.in_backward, tid)

    return symbols.stands_for(original, _engine_run_backward)


def _failed(recorder: Recorder, error: Exception) -> None:
    """Record who else was in a backward when the calling thread's failed; never raises."""
    local = recorder.local
    data = {
        "count": local.counts.get(("backward", None), 1),
        "error": in_words(error),
        "in_backward_tids": nesting.others(recorder.in_backward, local.tid),
    }
    if worth_recording(local.count(("backward failed", type(error)))):
        recorder.emit("backward", data, stack=True)


def _wrap_install(
    original: Callable[..., AbstractContextManager[Any]],
    lazy_backward: object,
    recorder: Recorder,
) -> Callable[..., AbstractContextManager[Any]]:
    @contextmanager
    def around(inner: AbstractContextManager[Any], compile_id: str) -> Iterator[Any]:
        data = {"behalf_tids": _on_behalf_of(recorder.local.tid, recorder.in_backward)}
        note_autograd(recorder)
        begun = recorder.emit(
            "backward_compile", data, edge="enter", compile_id=compile_id, stack=True
        )
        recorder.look_at_all_threads()
        recorder.reach("backward_compile", "enter")
        outcome: dict[str, Any] = {**data, "ok": True}
        recorder.local.backward_compiles += 1
        try:
            with inner as value:
                yield value
                recorder.reach("backward_compile", "exit")
        except BaseException as error:
            outcome.update(ok=False, error=in_words(error))
            recorder.reach("backward_compile", "exit")
            raise
        finally:
            recorder.local.backward_compiles -= 1
            if begun:
                recorder.emit("backward_compile", outcome, edge="exit", compile_id=compile_id)
            recorder.look_at_all_threads()

    @functools.wraps(original)
    def install_callbacks(
        self: Any, trigger: object, compile_id: str, *args: Any, **kwargs: Any
    ) -> AbstractContextManager[Any]:
        inner = original(self, trigger, compile_id, *args, **kwargs)
        return around(inner, str(compile_id)) if trigger is lazy_backward else inner

    return install_callbacks


def note_autograd(recorder: Recorder) -> None:
    """Record, if the calling thread is one of C++, its device and for whom it works just now.

    Autograd's device threads are (``Engine::thread_main`` in ``torch/csrc/autograd/engine.cpp``):
    each makes its device the current one and runs the backward of all callers. Once for each set of
    callers; never raises.
    """
    try:
        if not is_foreign_thread():
            return
        behalf = sorted(_on_behalf_of(recorder.local.tid, recorder.in_backward))
        if recorder.local.count(("autograd", tuple(behalf))) == 1:
            cuda = sys.modules["torch"].cuda
            device = f"cuda:{cuda.current_device()}" if cuda.is_initialized() else ""
            recorder.emit("autograd", {"device": device, "behalf_tids": behalf}, stack=True)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


def _on_behalf_of(tid: int, callers: nesting.Depths) -> list[int]:
    if tid in callers and not is_foreign_thread():
        return [tid]
    # Autograd's own thread can be inside a backward call too: one nested in the caller's.
    return nesting.others(callers, tid) or ([tid] if tid in callers else [])


PROBE = BackwardProbe()
