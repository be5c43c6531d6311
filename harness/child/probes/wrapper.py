"""Calls of compiled code: each thread's first, and some after anything of note happened.

``compile_wrapper``, which ``torch.compile`` returns, asks ``is_fx_symbolic_tracing`` on each call
before it runs. That question is where this probe listens: it is replaced before dynamo is imported,
so dynamo knows no other function and traces what it traced before.

A cached call costs one look at a flag of the process while no thread is left to be looked at, and a
look at the thread's own state otherwise. A thread that never called before makes itself known
through storage of torch's that the call reads anyway.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .. import codes, context, following, nesting, torch_code
from .. import torch_symbols as symbols
from ..asking import ask_first
from ..bounds import worth_recording
from ..calling_thread import is_foreign_thread
from ..recorder import Recorder
from ..settings import Settings
from ..stacks import user_stack
from . import Unavailable
from .backward import note_autograd

# Calls looked at in one thread after a change of epoch: enough for a step that calls a few compiled
# functions, few enough to cost nothing.
_LOOKS = 8
# Looks at one code object in one thread that are all written; later only powers of two are.
_ALWAYS = 64
# First calls of one code object by so many threads each begin an epoch, then those at powers of
# two: what they make all threads do must not grow with the threads that a program makes.
_ARRIVALS = 16
# How long after an epoch began a thread that called before is waited for.
_PATIENCE_S = 10.0
#: Where ``ThreadState.scratch`` keeps what ends with the thread.
_END = "wrapper"


class WrapperProbe:
    """Listens at ``torch.fx._symbolic_trace.is_fx_symbolic_tracing``."""

    name = "wrapper"
    modules: tuple[str, ...] = (symbols.FX_TRACING.module, symbols.THREAD_STORAGE.module)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Replace the function. Raises Unavailable if this torch has none."""
        watch = _Watch(recorder)
        around = None if recorder.schedule is None else _around(recorder)
        if settings.ask:
            symbols.CACHE_ENTRIES.get()
            around = ask_first(recorder, around)
        symbols.listen(watch, around, in_place=settings.in_process)
        recorder.look_at_all_threads = symbols.begin_epoch  # type: ignore[method-assign]
        if settings.in_process:
            return  # threads may be inside of what the storage holds, and all calls are seen
        try:
            symbols.THREAD_STORAGE.replace(_storage(symbols.THREAD_STORAGE.get(), watch))
        except Unavailable as error:
            watch.never_rest(str(error))


def _around(recorder: Recorder) -> Callable[[FrameType, symbols.Asked], bool]:
    """While a schedule runs each call comes by, before the flag is read and after it."""

    def around(frame: FrameType, answer: symbols.Asked) -> bool:
        if not torch_code.is_compile_wrapper(frame.f_code):
            return answer(frame)
        recorder.reach("wrapper", "enter")
        answered = answer(frame)
        recorder.reach("wrapper", "exit")
        return answered

    return around


def _storage(original: object, watch: "_Watch") -> object:
    """A ``threading.local`` like ``original`` that says when a thread first uses it."""

    class ThreadStorage(type(original)):  # type: ignore[misc]
        def __init__(self) -> None:  # runs once in each thread, C++ threads included
            super().__init__()
            watch.expect()

    return ThreadStorage()


class _Thread:
    """A thread that called, or that used torch's storage and so is likely about to call.

    Attributes:
        since: ``time.monotonic()`` at which it was first known.
        foreign: not started by Python.
        epoch: the one in which it last called.
        left: its calls still to be looked at in that epoch.
        seen: the code objects that it called in that epoch.
    """

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.foreign = is_foreign_thread()
        self.epoch: object = None
        self.left = 0
        self.seen: set[int] = set()

    def is_waited_for(self, epoch: object, begun: float, now: float) -> bool:
        """Whether ``epoch``, which began at ``begun``, is not over for this thread.

        One that never called is waited for as long as it lives, since its first call can be all
        there is to see of it. Autograd's threads use torch's storage and seldom call.
        """
        if self.epoch is epoch and self.left <= 0:
            return False
        if self.epoch is None:
            return not self.foreign or now - self.since < _PATIENCE_S
        return now - begun < _PATIENCE_S


class _End:
    """Kept by a thread alone, so that it goes, and says so, when the thread ends."""

    def __init__(self, threads: dict[int, _Thread], tid: int, thread: _Thread) -> None:
        self._threads = threads
        self._tid = tid
        self._thread = thread

    def __del__(self) -> None:
        # By now the id may be another thread's, or the thread may have been noted anew.
        if self._threads.get(self._tid) is self._thread:
            del self._threads[self._tid]


class _Watch:
    """What happens off the fast path. Nothing here raises.

    Calls go unseen once no thread is waited for in the present epoch.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._follower = following.of(recorder)
        self._rests = True
        self._threads: dict[int, _Thread] = {}
        self._callers: dict[int, Iterator[int]] = {}
        self._begun = (symbols.epoch(), time.monotonic())
        recorder.at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._threads, self._callers = {}, {}
        symbols.begin_epoch()
        self.expect()  # torch's storage knows this thread already

    def never_rest(self, why: str) -> None:
        """Watch all calls: this torch does not say when a thread first calls."""
        if self._rests:
            self._rests = False
            symbols.set_calm(False)
            reason = f"every cached call is slowed down: {why}"
            data = {"name": WrapperProbe.name, "state": "live", "reason": reason}
            self._recorder.at_end.append(functools.partial(self._recorder.emit, "probe", data))

    def expect(self) -> None:
        """Note that the calling thread is new to torch's storage, so likely about to call."""
        try:
            self._know()
            symbols.set_calm(False)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def _know(self) -> _Thread:
        local = self._recorder.local
        thread = self._threads[local.tid] = _Thread()
        local.scratch[_END] = _End(self._threads, local.tid, thread)
        return thread

    def rest(self) -> None:
        """Close the slow path if no thread is waited for."""
        epoch = symbols.epoch()
        if not self._rests or self._waits(epoch):
            return
        symbols.set_calm(True)
        # Whoever came after the check wrote first what is read here, and then that it is not calm.
        if self._waits(epoch) or symbols.epoch() is not epoch:
            symbols.set_calm(False)

    def _waits(self, epoch: object) -> bool:
        now = time.monotonic()
        if self._begun[0] is not epoch:
            self._begun = (epoch, now)
        begun = self._begun[1]
        threads = self._threads.copy().values()
        return any(thread.is_waited_for(epoch, begun, now) for thread in threads)

    def look(self, frame: FrameType) -> None:
        """Record the call if its thread has not called this code since the epoch began."""
        try:
            if torch_code.is_compile_wrapper(frame.f_code):
                self._look(frame, symbols.epoch())
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def flagged(self, frame: FrameType) -> None:
        """Record that dynamo saw the FX-tracing flag set: the call raises or runs eager."""
        try:
            if torch_code.is_compile_wrapper(frame.f_code):
                self._flagged(frame)
        except Exception:  # noqa: BLE001
            self._recorder.lost += 1

    def _look(self, frame: FrameType, epoch: object) -> None:
        recorder, local = self._recorder, self._recorder.local
        thread = self._threads.get(local.tid)
        if thread is None:
            thread = self._know()
            self.never_rest(f"{symbols.THREAD_STORAGE} is not used by each call")
        if thread.epoch is not epoch:
            thread.left, thread.seen = _LOOKS, set()
            thread.epoch = epoch
        thread.left -= 1
        if thread.left <= 0:
            symbols.settle(epoch)
            self.rest()
        if thread.foreign:
            note_autograd(recorder)  # it recomputes a checkpointed call, say
        code = codes.describe_function(torch_code.compiled_function(frame))
        number = 0 if code is None else code["id"]
        where = user_stack()
        # The last look only tells what came of the call before it: the next call is not seen.
        if thread.left > 0:
            self._follower.entered(code, where)
        else:
            self._follower.settle()
        if number in thread.seen:
            return
        thread.seen.add(number)
        # A thread's first call of the program's code is its first whatever torch called before.
        internal = code is not None and code["internal"]
        first = local.count(("wrapper_first", internal)) == 1
        count = local.count(("wrapper", number))
        if count > _ALWAYS and count & (count - 1):
            return
        data: dict[str, Any] = {"code": code, "first": first, "count": count}
        stance = self._follower.stance()
        if stance is not None:
            data["stance"], data["stance_tid"] = stance.detail, stance.by_tid
        if first:
            data["context"] = context.describe()
        recorder.emit("wrapper", data, where=where)
        if code is not None and count == 1:
            self._arrived(thread, number)

    def _arrived(self, thread: _Thread, number: int) -> None:
        """Have all who called the code object before looked at again.

        Two threads call it in the same period if one calls before and after another's first call,
        and cached calls go unseen.
        """
        # next() of a counter is atomic, where adding to a number is not.
        callers = next(self._callers.setdefault(number, itertools.count(1)))
        if callers > 1 and (callers <= _ARRIVALS or worth_recording(callers)):
            thread.epoch = symbols.begin_epoch()

    def _flagged(self, frame: FrameType) -> None:
        recorder, tid = self._recorder, self._recorder.local.tid
        code = codes.describe_function(torch_code.compiled_function(frame))
        nested = symbols.nested_outcome()
        tracing = nesting.inside(recorder.tracing)
        self._follower.flagged(code, nested, tracing)
        data = {
            "code": code,
            "fx_flag": True,
            "nested": nested,
            "tracing_tids": tracing,
            "compiling_tids": nesting.others(recorder.compiling, tid),
        }
        kind = ("flagged", code and code["id"], nested)
        recorder.emit_counted("wrapper", kind, data, stack=True)


PROBE = WrapperProbe()
