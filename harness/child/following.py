"""What came of a call of compiled code: a cache hit, a compile, or neither, so that it ran eager.

Dynamo says nothing of a call that it leaves to Python. So a call that is looked at anyway is
followed: it is pending in its thread until guards of a frame hold there or a frame is compiled. One
that is still pending when its thread calls again, or ends, ran eager. A call whose guards all
failed and that compiled nothing ran eager too.

Hits are what tells the two apart, and a hit must cost nothing. So the tap, dynamo's guard hook, is
open only while a call is pending anywhere (see the guards probe).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from . import torch_code
from . import torch_symbols as symbols
from .bounds import worth_recording
from .errors import in_words
from .recorder import Recorder
from .stacks import user_stack

# A thread may be parked for hours after its last call, and each hit elsewhere costs a microsecond
# more as long as that call is pending.
_PATIENCE_S = 10.0
_MAX_FATES = 4096
_MAX_DETAIL = 300
# Threads that may be setting stances at once, each of which is kept with its thread.
_SETTERS = 8
# Under these a call that no entry fits raises.
_RAISING = frozenset({"fail_on_recompile", symbols.SKIP_GUARDS})

Described = dict[str, Any]
Stack = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Switch:
    """What makes torch run a call eager.

    Attributes:
        route: see ``harness.events.calls.EagerData``.
        detail: the stance, the modes, or torch's words.
        by_tid: the thread whose doing it was; None if it is not known.
    """

    route: str
    detail: str = ""
    by_tid: int | None = None


_UNKNOWN = Switch("unknown")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call, when and where it was made; ``switch``: what was set that can make it run eager.

    ``thread`` is an object of its thread's own: the system gives the id of a thread that ended to
    another one, and those that Python did not start end unheard.
    """

    code: Described
    where: Stack | None
    switch: Switch | None
    mark: object
    began_ns: int
    thread: object


class Tap(Protocol):
    """Where cache hits come by. Each hit costs something while it is open, and nothing while not.

    Attributes:
        is_open: hits are told.
    """

    is_open: bool

    def open(self) -> None:
        """Have hits told."""

    def shut(self) -> None:
        """Have them told no more."""

    def keep_misses(self) -> None:
        """From now on misses are told here alone: code runs eager that dynamo compiles no more."""


_followers: WeakKeyDictionary[Recorder, "Follower"] = WeakKeyDictionary()


def of(recorder: Recorder) -> "Follower":
    """The follower whose events go to ``recorder``."""
    # No lock, since signal handlers come by here. The first probe makes it, as torch is imported.
    found = _followers.get(recorder)
    if found is not None:
        return found
    made = Follower(recorder)
    found = _followers.setdefault(recorder, made)
    if found is made:  # of threads that come here at once, one has made it for all
        made.watch_forks()
    return found


class Follower:
    """Follows the calls of one process. Methods are called by the thread that they are about.

    No locks: a call that another thread's doing may have made to look eager is not told of (see
    ``_settle_pending``).
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._tap: Tap | None = None
        self._pending: dict[int, _Call] = {}
        self._missed: dict[int, _Call] = {}
        self._fates: dict[int, Switch] = {}
        self._mark = object()
        self._opened = 0.0
        self._setters: tuple[tuple[object, int], ...] = ()
        self._shutting: set[int] = set()

    def watch_forks(self) -> None:
        """Begin anew in a forked child, which has the forking thread alone."""
        self._recorder.at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._shutting = set()
        self._pending, self._missed, self._setters = {}, {}, ()
        if self._tap is not None:
            self._shut(self._tap)

    def attach(self, tap: Tap) -> None:
        """Begin; ``tap`` is shut."""
        self._tap = tap

    def setting_stance(self, stance: object) -> None:
        """The calling thread is about to put ``stance`` in force."""
        # An entry lost to another thread leaves its stance nobody's, which is said as not known.
        self._setters = (*self._setters[1 - _SETTERS :], (stance, self._recorder.local.tid))

    def stance(self) -> Switch | None:
        """The stance in force; None if it is the default."""
        name, found = symbols.stance()
        if not name:
            return None
        # By identity: another thread may have announced the next one, which is not in force yet.
        by = next((tid for stance, tid in reversed(self._setters) if stance is found), None)
        return Switch("stance", name, by)

    def entered(self, code: Described | None, where: Stack | None) -> None:
        """A call of ``code`` begins and is looked at."""
        self.settle()
        tap = self._tap
        if tap is None or code is None or code["internal"]:
            return
        self._opened = time.monotonic()
        mark = self._mark
        self._pending[self._recorder.local.tid] = self._call(code, where, self._switch(), mark)
        tap.open()

    def settle(self) -> None:
        """The thread calls again, or ends: what came of its last call is known now."""
        self._settle_pending()
        missed = self._take(self._missed)
        if missed is not None:
            self._ran_eager(missed)

    def hit(self) -> None:
        """The guards of an entry held."""
        if self._take_pending() is not None:
            return
        if time.monotonic() - self._opened > _PATIENCE_S and self._tap is not None:
            self._pending.clear()
            self._shut(self._tap)

    def interrupted(self) -> None:
        """A signal handler raised on the way here: what came of the call is not known."""
        self._take(self._missed)
        self._take_pending()

    def missed(self, code: Described | None) -> None:
        """The guards of all entries failed."""
        call = self._take_pending()
        earlier = self._take(self._missed)
        if earlier is not None:
            self._ran_eager(earlier)
        if code is None or code["internal"]:
            return
        if call is None or call.code["id"] != code["id"]:
            switch = self._switch()
            # Once the limit was hit every call of a loop may come by here.
            worth = worth_recording(self._times(code, switch or self._fate(code)) + 1)
            where = user_stack() if worth else None
            call = self._call(code, where, switch, None)
        self._missed[self._recorder.local.tid] = call

    def compiling(self, code: Described) -> int:
        """A compile begins; returns when the followed call began that came to it; 0: none did."""
        call = self._take_pending()
        call = self._take(self._missed) or call
        return call.began_ns if call is not None and call.code["id"] == code["id"] else 0

    def compiled(self, code: Described, began_ns: int, left: Switch | None) -> None:
        """A compile ended, and did not make the call raise.

        Args:
            code: what was compiled.
            began_ns: as ``compiling`` returned it.
            left: why torch leaves the call to Python; None if it does not.
        """
        if left is None:
            self._fates.pop(code["id"], None)
            return
        tid = self._recorder.local.tid
        later = "run_only" if left.route == "recompile_limit" else left.route
        if later == "run_only" and self._tap is not None:
            self._tap.keep_misses()
        self._remember(code, Switch(later, left.detail[:_MAX_DETAIL], tid))
        if not code["internal"] and (began_ns or left.route == "recompile_limit"):
            switch = Switch(left.route, left.detail, tid)
            self._emit(code, switch, user_stack(), began_ns or time.monotonic_ns())

    def flagged(self, code: Described | None, nested: str, tracing: Sequence[int]) -> None:
        """The call found the FX-tracing flag set: it raises, or runs eager (``nested``)."""
        self._take_pending()
        if nested == "eager" and code is not None and not code["internal"]:
            by = tracing[0] if len(tracing) == 1 else None
            self._emit(code, Switch("fx_flag", by_tid=by), user_stack(), time.monotonic_ns())

    def _call(
        self, code: Described, where: Stack | None, switch: Switch | None, mark: object
    ) -> _Call:
        thread = self._recorder.local.scratch
        return _Call(code, where, switch, mark, time.monotonic_ns(), thread)

    def _take(self, calls: dict[int, _Call]) -> _Call | None:
        """Take the calling thread's call out, and drop one of a thread that had the id before."""
        local = self._recorder.local
        call = calls.pop(local.tid, None)
        return call if call is not None and call.thread is local.scratch else None

    def _take_pending(self) -> _Call | None:
        if self._recorder.local.tid not in self._pending:
            return None
        call = self._take(self._pending)
        if self._tap is not None and not self._pending:
            self._shut(self._tap)
        return call

    def _settle_pending(self) -> None:
        tap = self._tap
        call = self._pending.get(self._recorder.local.tid)
        if call is None or tap is None:
            return
        # Another thread may have shut the tap meanwhile, so that a hit of this one went unseen. It
        # says that it is about to, shuts the tap, changes the mark and takes its word back, so it
        # is asked for in this order.
        unseen = bool(self._shutting) or not tap.is_open or call.mark is not self._mark
        call = self._take_pending()
        if call is not None and not unseen:
            self._ran_eager(call)

    def _shut(self, tap: Tap) -> None:
        tid = self._recorder.local.tid
        self._shutting.add(tid)
        try:
            tap.shut()
            self._mark = object()
        finally:
            self._shutting.discard(tid)
        if self._pending:  # somebody's call came just now
            self._mark = object()
            tap.open()

    def _switch(self) -> Switch | None:
        stance = self.stance()
        if stance is not None:
            return stance
        modes = symbols.dispatch_modes()
        if modes:
            return Switch("dispatch_mode", ", ".join(modes), self._recorder.local.tid)
        return None

    def _fate(self, code: Described) -> Switch:
        return self._fates.get(code["id"], _UNKNOWN)

    def _remember(self, code: Described, fate: Switch) -> None:
        if len(self._fates) >= _MAX_FATES:
            self._fates.clear()
        self._fates[code["id"]] = fate

    def _ran_eager(self, call: _Call) -> None:
        switch = call.switch or self._fate(call.code)
        if switch.route == "stance" and switch.detail in _RAISING:
            return
        self._emit(call.code, switch, call.where, call.began_ns)
        if switch.route == "dispatch_mode":
            # Up to torch 2.13 dynamo marks the code object, so it leaves all later calls as well.
            fate = Switch("skipped_for_mode", switch.detail, switch.by_tid)
            self._remember(call.code, fate)

    def _times(self, code: Described, switch: Switch) -> int:
        return self._recorder.local.counts.get(("eager", _kind(code, switch)), 0)

    def _emit(self, code: Described, switch: Switch, where: Stack | None, began_ns: int) -> None:
        data = {
            "code": code,
            "route": switch.route,
            "detail": switch.detail[:_MAX_DETAIL],
            "by_tid": switch.by_tid,
            "began_ns": began_ns,
        }
        self._recorder.emit_counted("eager", _kind(code, switch), data, where=where)


def _kind(code: Described, switch: Switch) -> tuple[Any, ...]:
    return code["id"], switch.route, switch.detail[:40], switch.by_tid


def left_to_python(result: Any, error: BaseException | None, *, fullgraph: bool) -> Switch | None:
    """Why the call that led to a compile runs eager; None if it runs compiled, or raises.

    Args:
        result: what the compile returned.
        error: what it raised.
        fullgraph: nothing may be left to Python, so every failure is raised to the caller.
    """
    if error is None:
        if getattr(result, "guarded_code", None) is not None:
            return None
        return Switch("no_graph", str(getattr(result, "skip_reason", None) or ""))
    route = torch_code.route_of_failure(error, fullgraph=fullgraph)
    return Switch(route, in_words(error)) if route else None
