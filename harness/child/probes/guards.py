"""Guard misses, seen on the calling thread at the moment that they happen.

A miss that leads to a compile shows where dynamo takes the compile lock for it. Others, and hits,
show through the one process-wide hook that dynamo calls after every evaluation of a frame's guards.
An exception that leaves the hook ends the process, and a signal handler can raise one in any Python
function, even before its first line. So the hook is a dict's own ``__getitem__``, which calls
Python through ctypes, which lets no exception pass.
"""

import ctypes
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .. import caches, codes, context, following, torch_code, unseen
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..reraise import raise_outside
from ..settings import Settings
from . import Unavailable

#: Name of the class whose bound method is put into the place for dynamo's guard hook.
ANSWERS = "OnGuard"
#: Where ``ThreadState.scratch`` keeps which frame's miss the hook has told of last.
_TOLD = "miss told"


class Conflict(Unavailable):
    """Somebody else has the one place for the hook."""

    state = "conflict"


class GuardHook:
    """The hook, in its place only while somebody must know of guards; a ``following.Tap``.

    Dynamo's call of a hook costs a cached call half a microsecond whatever the hook does. A miss
    shows without it, since dynamo then takes the compile lock, unless the code object is one that
    dynamo compiles no more.

    In place, it answers True to a hit, in C while the tap is shut; it records a miss and answers
    False, as if nobody had been asked. (A signal handler that raises before Python's first line is
    reached can turn a hit that is told into a miss, so that the call compiles again: once in 2,700
    such signals, all of them aimed there.)
    """

    def __init__(self, recorder: Recorder) -> None:
        self.is_open = False
        self._keeps_misses = False
        self._taken = ""
        self._recorder = recorder
        self._follower = following.of(recorder)
        self._set = symbols.SET_GUARD_HOOK.get()
        tell = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.py_object)(self._tell)
        self._answers = type(ANSWERS, (dict,), {"__missing__": tell})({True: True})
        # One object for good: a thread may be inside of it when another takes it out.
        self._hook: Callable[[bool], bool] = self._answers.__getitem__

    def open(self) -> None:
        """Have hits told."""
        self._answers.pop(True, None)
        self.is_open = True
        self._put(self._hook)

    def shut(self) -> None:
        """Have hits told no more."""
        self._answers[True] = True
        self.is_open = False
        self._put(self._hook if self._keeps_misses else None)

    def keep_misses(self) -> None:
        """Stay in place from now on, for the misses."""
        self._keeps_misses = True
        self._put(self._hook)

    def owner(self) -> str:
        """Who else has the place for the hook; empty if nobody has."""
        current = self._set(None)
        self._set(current)
        return "" if current is None or current is self._hook else repr(current)

    def report(self) -> None:
        """Say so if somebody else had the place at some time."""
        taken = self._taken or self.owner()
        if taken:
            reason = f"the program put {taken} in its place"
            data = {"name": PROBE.name, "state": "conflict", "reason": reason}
            self._recorder.emit("probe", data)

    def _put(self, hook: Callable[[bool], bool] | None) -> None:
        previous = self._set(hook)
        if previous is not None and previous is not self._hook:
            self._set(previous)
            self._taken = self._taken or repr(previous)

    def _tell(self, hit: bool) -> bool:  # noqa: FBT001 - dynamo's calling convention
        try:
            if hit:
                self._follower.hit()
            else:
                _record_miss(self._recorder, sys._getframe(1))  # noqa: SLF001 - who called
        except Exception:  # noqa: BLE001 - an exception here would end the process
            self._recorder.lost += 1
        except BaseException as error:  # noqa: BLE001
            # Ctrl-C, or a handler's SystemExit, came just now, and cannot be let through here.
            self._follower.interrupted()
            raise_outside(GuardHook._tell.__code__, error)
        return hit


class GuardsProbe:
    """Sees misses at dynamo's compile lock, and what else there is through its guard hook."""

    name = "guards"
    modules: tuple[str, ...] = (
        symbols.EVAL_FRAME_MODULE,
        symbols.SKIP_FILES_CHECK.module,
        symbols.COMPILE_LOCK.module,
    )

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Watch. Raises Conflict if somebody else's hook is set already; that one stays."""
        symbols.CACHE_ENTRIES.get()
        symbols.COMPILE_LOCK.get()
        hook = GuardHook(recorder)
        taken = hook.owner()
        if taken:
            raise Conflict(f"dynamo's guard-complete hook is taken by {taken}")
        unseen.hide_own_frames()
        following.of(recorder).attach(hook)
        recorder.compile_wanted = functools.partial(_at_the_lock, recorder)  # type: ignore[method-assign]
        recorder.at_end.append(hook.report)


def _at_the_lock(recorder: Recorder, caller: FrameType) -> None:
    """Record a miss that the hook was not there to tell of. Never raises."""
    try:
        wanted = torch_code.wanted_compile(caller)
        told = recorder.local.scratch.pop(_TOLD, None)
        if wanted is not None and wanted.missed and told not in _nearest(caller):
            _record(recorder, wanted.code, wanted.target)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


def _nearest(frame: FrameType | None) -> list[int]:
    """Ids of a frame and of the two that led to it."""
    found: list[int] = []
    while frame is not None and len(found) < 3:
        found.append(id(frame))
        frame = frame.f_back
    return found


def _record_miss(recorder: Recorder, frame: FrameType) -> None:
    """Record a miss of which the hook told; ``frame`` has called what missed."""
    recorder.local.scratch[_TOLD] = id(frame)
    if torch_code.is_compile_wrapper(frame.f_code):
        function = torch_code.compiled_function(frame)
    else:
        function = torch_code.called_module_function(frame)
    _record(recorder, *torch_code.code_of(function))


def _record(recorder: Recorder, code: CodeType | None, target: object) -> None:
    described = None if code is None else codes.describe(code, target)
    following.of(recorder).missed(described)
    recorder.reach("guard_miss", "enter")
    recorder.reach("guard_miss", "exit")
    count = recorder.counted("guard_miss", described and described["id"])
    if not count:
        return
    data: dict[str, Any] = {"code": described, "context": context.describe(), "count": count}
    if code is not None and described is not None:
        data["entries"] = len(caches.entries_of(code, described))
    recorder.emit("guard_miss", data, stack=True)
    recorder.look_at_all_threads()


PROBE = GuardsProbe()
