"""Calls of compiled code that ran eager, and the stances under which they did."""

from collections import deque
from collections.abc import Sequence

from harness.events import schema
from harness.timeline.model import EagerCall, StanceCall, StanceSet
from harness.timeline.sharing import Shared, cut
from harness.timeline.timeline import Timeline

SKIP_GUARDS = "skip_guard_eval_unsafe"
"""What the recorder calls the default stance with guards skipped."""
LIMIT_ROUTES = frozenset({"recompile_limit", "run_only"})
_SETTERS = 4096
"""So many threads' stances are looked up for a call, the last few that each has set."""
_LAST = 8
MODE_ROUTES = frozenset({"dispatch_mode", "skipped_for_mode"})


class EagerCalls:
    """Feeds these events into a timeline."""

    def __init__(self, timeline: Timeline, shared: Shared) -> None:
        self._timeline = timeline
        self._shared = shared
        self._sets: dict[tuple[int, str], deque[StanceSet]] = {}

    def call(self, event: schema.Eager) -> None:
        """A call that ran eager."""
        data = event.data
        if data.code.internal:
            return
        t = data.began_ns or event.t_ns
        self._timeline.eager.append(
            EagerCall(
                tid=event.tid,
                t=t,
                seq=event.seq,
                code=self._shared.one(data.code),
                route=data.route,
                detail=self._shared.one(cut(data.detail)),
                by=data.by_tid,
                count=data.count,
                where=self._shared.one(event.where),
                setting=self._setting(data.by_tid, data.detail, t),
            )
        )

    def stance(self, event: schema.Stance) -> None:
        """A stance that a thread set."""
        data = event.data
        default = SKIP_GUARDS if data.skip_guards else ""
        found = StanceSet(
            tid=event.tid,
            t=event.t_ns,
            seq=event.seq,
            stance=default if data.stance == "default" else data.stance,
            where=self._shared.one(event.where),
        )
        self._timeline.stances.append(found)
        key = found.tid, found.stance
        if key not in self._sets and len(self._sets) >= _SETTERS:
            del self._sets[next(iter(self._sets))]
        self._sets.setdefault(key, deque(maxlen=_LAST)).append(found)

    def wrapper(self, event: schema.Wrapper) -> None:
        """A call, of note here if it came under a stance."""
        data = event.data
        if data.stance and data.code is not None and not data.code.internal:
            self._timeline.under_stance.append(
                StanceCall(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    code=self._shared.one(data.code),
                    stance=data.stance,
                    by=data.stance_tid,
                    where=self._shared.one(event.where),
                    setting=self._setting(data.stance_tid, data.stance, event.t_ns),
                )
            )

    def _setting(self, by: int | None, stance: str, t: int) -> StanceSet | None:
        """Where thread ``by`` had last set a stance at time ``t``.

        Looked up here and not in the timeline, in which so many alike are not kept.
        """
        sets = () if by is None else self._sets.get((by, stance), ())
        return next((s for s in reversed(sets) if s.t <= t), None)


def setting_of(timeline: Timeline, call: EagerCall | StanceCall) -> StanceSet | None:
    """Where the stance of a call was set; None if that was not recorded."""
    stance = call.detail if isinstance(call, EagerCall) else call.stance
    if call.setting is not None or call.by is None:
        return call.setting
    return set_before(timeline, call.by, stance, call.t)


def set_before(timeline: Timeline, tid: int, stance: str, t: int) -> StanceSet | None:
    """Where thread ``tid`` last set a stance before ``t``, as far as it was recorded."""
    found = [s for s in timeline.stances if s.tid == tid and s.stance == stance and s.t <= t]
    return found[-1] if found else None


def before(calls: Sequence[EagerCall], tid: int, t: int) -> list[EagerCall]:
    """Those of one thread up to a time."""
    return [call for call in calls if call.tid == tid and call.t <= t]
