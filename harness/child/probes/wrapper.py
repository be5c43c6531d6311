"""Calls of compiled code: each thread's first, and some after anything of note happened.

``compile_wrapper``, which ``torch.compile`` returns, asks ``is_fx_symbolic_tracing`` on each call
before it runs. That question is where this probe listens: it is replaced before dynamo is imported,
so dynamo knows no other function and traces what it traced before.

A cached call costs one look at a flag of the process: looking up anything of the calling thread's
own would cost several times as much. Who has to be looked at is settled elsewhere
(``_Watch``), and a thread that never called before makes itself known through storage of torch's
that the call reads anyway.
"""

import os
import sys
import time
from types import FrameType
from typing import Any

from .. import codes, context, nesting
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable

# Calls looked at in one thread after a change of epoch: enough for a step that calls a few compiled
# functions, few enough to cost nothing.
_LOOKS = 8
# Looks at one code object in one thread that are all written; later only powers of two are.
_ALWAYS = 64
# How long a thread that called before, and one that is about to, is waited for.
_PATIENCE_S = 10.0
_UNSETTLED = -1
# Kept per thread in ThreadState.scratch.
_USED_STORAGE, _EPOCH, _SEEN = "wrapper storage", "wrapper epoch", "wrapper seen"


class WrapperProbe:
    """Listens at ``torch.fx._symbolic_trace.is_fx_symbolic_tracing``."""

    name = "wrapper"
    modules: tuple[str, ...] = (symbols.FX_TRACING.module, symbols.THREAD_STORAGE.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Replace the function. Raises Unavailable if this torch has none."""
        watch = _Watch(recorder)
        symbols.listen(watch)
        recorder.look_at_all_threads = watch.look_at_all_threads  # type: ignore[method-assign]
        try:
            symbols.THREAD_STORAGE.replace(_storage(symbols.THREAD_STORAGE.get(), watch))
        except Unavailable:
            watch.never_settle()


def _storage(original: object, watch: "_Watch") -> object:
    """A ``threading.local`` like ``original`` that says when a thread first uses it."""

    class ThreadStorage(type(original)):  # type: ignore[misc]
        def __init__(self) -> None:  # runs once in each thread, C++ threads included
            super().__init__()
            watch.expect()

    return ThreadStorage()


class _Watch:
    """What happens off the fast path. Nothing here raises.

    Calls go unseen once no thread is left to be looked at in the recorder's epoch. Threads are
    waited for if they called before, or used torch's storage and so are about to call; those that
    do not for some time are given up until the next epoch.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next_epoch = recorder.look_at_all_threads
        self._settles = True
        self._storage_speaks = False
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        symbols.set_calm(False)
        # By thread: when it used torch's storage without a call yet; the last epoch it was done in.
        self._expected: dict[int, float] = {}
        self._done: dict[int, int] = {}
        self._opened = (_UNSETTLED, 0.0)

    def look_at_all_threads(self) -> None:
        """Begin a new epoch (this is the recorder's method once the probe is live)."""
        self._next_epoch()
        symbols.set_calm(False)

    def never_settle(self) -> None:
        """Look at every call: this torch does not say when a thread first calls."""
        self._settles = False
        symbols.set_calm(False)

    def expect(self) -> None:
        """Note that the calling thread is new to torch's storage, so likely about to call."""
        try:
            local = self._recorder.local
            local.scratch[_USED_STORAGE] = True
            self._expected[local.tid] = time.monotonic()
            symbols.set_calm(False)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def look(self, frame: FrameType) -> None:
        """Record the call if its thread has not called this code since the epoch began."""
        try:
            if symbols.is_compile_wrapper(frame.f_code):
                epoch = self._recorder.epoch
                if self._recorder.local.epoch != epoch:
                    self._look(frame, epoch)
                self._settle(epoch)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def flagged(self, frame: FrameType) -> None:
        """Record that dynamo saw the FX-tracing flag set: the call raises or runs eager."""
        try:
            if symbols.is_compile_wrapper(frame.f_code):
                self._flagged(frame)
        except Exception:  # noqa: BLE001
            self._recorder.lost += 1

    def _settle(self, epoch: int) -> None:
        """Close the slow path if nobody is left to be looked at in this epoch."""
        now = time.monotonic()
        if self._opened[0] != epoch:
            self._opened = (epoch, now)
        late = [tid for tid, done in list(self._done.items()) if done != epoch]
        if late and now - self._opened[1] < _PATIENCE_S:
            return
        for tid in late:
            self._done.pop(tid, None)
        for tid, since in list(self._expected.items()):
            if now - since > _PATIENCE_S:
                self._expected.pop(tid, None)
        if self._expected or not self._settles:
            return
        symbols.set_calm(True)
        # Whoever came after the checks wrote first what is read here, and then that it is not calm.
        if self._expected or self._recorder.epoch != epoch:
            symbols.set_calm(False)

    def _first_look(self, tid: int) -> None:
        self._expected.pop(tid, None)
        if not self._storage_speaks:
            self._storage_speaks = _USED_STORAGE in self._recorder.local.scratch
            if not self._storage_speaks:  # a torch whose calls do not use it
                self.never_settle()

    def _look(self, frame: FrameType, epoch: int) -> None:
        recorder, local = self._recorder, self._recorder.local
        if _EPOCH not in local.scratch:
            self._first_look(local.tid)
        if local.scratch.get(_EPOCH) != epoch:
            self._done[local.tid] = _UNSETTLED
            local.scratch[_EPOCH] = epoch
            local.scratch[_SEEN] = set()
            local.looks = _LOOKS
        local.looks -= 1
        if local.looks <= 0:
            self._done[local.tid] = local.epoch = epoch
        code = codes.describe_function(symbols.compiled_function(frame))
        number = 0 if code is None else code["id"]
        if number in local.scratch[_SEEN]:
            return
        local.scratch[_SEEN].add(number)
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
