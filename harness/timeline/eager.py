"""Calls of compiled code that ran eager, and the stances under which they did."""

from collections.abc import Sequence

from harness.events import schema
from harness.timeline.model import EagerCall, StanceCall, StanceSet
from harness.timeline.sharing import Shared, cut
from harness.timeline.timeline import Timeline

SKIP_GUARDS = "skip_guard_eval_unsafe"
"""What the recorder calls the default stance with guards skipped."""
LIMIT_ROUTES = frozenset({"recompile_limit", "run_only"})
MODE_ROUTES = frozenset({"dispatch_mode", "skipped_for_mode"})


class EagerCalls:
    """Feeds these events into a timeline."""

    def __init__(self, timeline: Timeline, shared: Shared) -> None:
        self._timeline = timeline
        self._shared = shared

    def call(self, event: schema.Eager) -> None:
        """A call that ran eager."""
        data = event.data
        if data.code.internal:
            return
        self._timeline.eager.append(
            EagerCall(
                tid=event.tid,
                t=data.began_ns or event.t_ns,
                seq=event.seq,
                code=self._shared.one(data.code),
                route=data.route,
                detail=self._shared.one(cut(data.detail)),
                by=data.by_tid,
                count=data.count,
                where=self._shared.one(event.where),
            )
        )

    def stance(self, event: schema.Stance) -> None:
        """A stance that a thread set."""
        data = event.data
        default = SKIP_GUARDS if data.skip_guards else ""
        self._timeline.stances.append(
            StanceSet(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                stance=default if data.stance == "default" else data.stance,
                where=self._shared.one(event.where),
            )
        )

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
                )
            )


def set_before(timeline: Timeline, tid: int, stance: str, t: int) -> StanceSet | None:
    """Where thread ``tid`` last set a stance before ``t``, as far as it was recorded."""
    found = [s for s in timeline.stances if s.tid == tid and s.stance == stance and s.t <= t]
    return found[-1] if found else None


def before(calls: Sequence[EagerCall], tid: int, t: int) -> list[EagerCall]:
    """Those of one thread up to a time."""
    return [call for call in calls if call.tid == tid and call.t <= t]
