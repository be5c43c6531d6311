"""Keeps a long recording's timeline small: of records that are alike, the first and last few stay.

A list is left alone until it is long, so a recording of ordinary length is never folded. Records
are alike if causes cannot tell them apart but by their time; the one before the gap then stands for
those that were left out (``times``), so that counts stay exact. What was still going on, what
others refer to, and what was under way while something of note happened is kept.
"""

import bisect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.timeline import kinds
from harness.timeline.calls import Calls
from harness.timeline.history import CodeHistory
from harness.timeline.kinds import Kind
from harness.timeline.model import Span, Uncovered
from harness.timeline.points import Points
from harness.timeline.timeline import Timeline

RecordT = TypeVar("RecordT", bound=Any)

NEAR_NS = 1_000_000_000
"""What ended so shortly before an error may have to do with it."""


@dataclass(frozen=True)
class Bounds:
    """How much of a timeline is told one by one.

    Attributes:
        records: of one kind.
        calls: uncovered calls, over all code objects.
        codes: code objects.
        threads: threads.
        ends: of records that are alike, so many at the beginning and at the end.
        recent: the last so many of a list stay, since more may yet be heard of them.
        every: events from one look at all this to the next.
    """

    records: int = 4096
    calls: int = 8192
    codes: int = 4096
    threads: int = 4096
    ends: int = 8
    recent: int = 512
    every: int = 16384


BOUNDS = Bounds()


def thin(
    records: list[RecordT],
    kind: Callable[[RecordT], Hashable],
    keep: Callable[[RecordT], bool],
    ends: int,
    recent: int = 0,
) -> list[RecordT]:
    """The records without the middle of each ``kind``, except for those to ``keep``."""
    groups: dict[Hashable, list[int]] = {}
    for number, record in enumerate(records[: len(records) - recent]):
        groups.setdefault(kind(record), []).append(number)
    dropped: set[int] = set()
    for numbers in groups.values():
        middle = [n for n in numbers[ends:-ends] if not keep(records[n])]
        if middle:
            records[numbers[ends - 1]].times += sum(records[n].times for n in middle)
            dropped.update(middle)
    return [record for number, record in enumerate(records) if number not in dropped]


class _Moments:
    """Times at which something of note happened.

    ``late``: what was noted then may have happened up to ``NEAR_NS`` before, since an error is
    recorded when it ends its thread.
    """

    def __init__(self, times: Iterable[int], late: Iterable[int]) -> None:
        self._times = sorted(times)
        self._late = sorted(late)

    def near(self, span: Span) -> bool:
        """Whether one of them lies in a span, or what was noted late may."""
        return _any_in(self._times, span.t0, span.t1) or _any_in(
            self._late, span.t0, None if span.t1 is None else span.t1 + NEAR_NS
        )


def _any_in(times: Sequence[int], begin: int, end: int | None) -> bool:
    at = bisect.bisect_left(times, begin)
    return at < len(times) and (end is None or times[at] <= end)


class Folder:
    """Folds a timeline under construction whenever it has grown."""

    def __init__(self, timeline: Timeline, calls: Calls, points: Points, bounds: Bounds) -> None:
        self._timeline = timeline
        self._calls = calls
        self._points = points
        self._bounds = bounds
        self._events = 0
        self._next: dict[str, int] = {}

    def after_event(self) -> None:
        """Take a look, once in a while."""
        self._events += 1
        if self._events % self._bounds.every == 0:
            self.fold()

    def fold(self) -> None:
        """Fold whatever is too long."""
        timeline, read = self._timeline, self._timeline.futures_read
        self._fold("flagged", kinds.flagged, lambda _: False)
        self._fold("eager", kinds.eager, lambda _: False)
        self._fold("under_stance", kinds.under_stance, lambda _: False)
        self._fold("stances", kinds.stance, lambda _: False)
        largest = max(timeline.dense, key=lambda d: d.scores_bytes, default=None)
        self._fold("dense", kinds.dense, lambda d: d is largest)
        self._fold("errors", lambda e: kinds.error(e, read), lambda _: False)
        moments = self._moments()
        open_ = {id(span) for span in self._points.open}

        def pinned(span: Span) -> bool:
            return id(span) in open_ or moments.near(span)

        self._fold("block_masks", kinds.mask, pinned)
        self._fold("compiling_reads", kinds.compiling_read, lambda _: False)
        self._fold("fx_traces", kinds.trace, pinned)
        self._fold("backward_compiles", kinds.backward, lambda b: id(b) in open_)
        self._fold_calls(moments)
        self._fold_waits()
        self._fold_codes()
        self._fold_threads()

    def _fold(
        self,
        name: str,
        kind: Callable[[Any], Kind],
        keep: Callable[[Any], bool],
    ) -> None:
        """Fold one of the timeline's lists, harder and harder until it is short enough."""
        bounds = self._bounds
        records = getattr(self._timeline, name)
        if len(records) <= self._next.get(name, bounds.records):
            return
        recent = min(bounds.recent, bounds.records // 4)
        for ends in _halves(bounds.ends):
            if len(records) > bounds.records // 2:
                records = thin(records, kind, keep, ends, recent)
        for part in (slice(1, None), slice(1, 4), slice(1, 3)):
            # More kinds than there is room for: then threads count no more, nor then what weighs
            # less than what decides whether there is a finding.
            if len(records) > bounds.records:
                records = thin(records, _part(kind, part), lambda _: False, bounds.ends, recent)
        setattr(self._timeline, name, records)
        self._next[name] = max(bounds.records, 2 * len(records))

    def _moments(self) -> _Moments:
        timeline = self._timeline
        times = [
            *(call.t for call in timeline.flagged),
            *(call.t for call in timeline.dense),
            *(read.t for read in timeline.compiling_reads),
            *(call.t for call in timeline.eager),
            *(mask.t0 for mask in timeline.block_masks if mask.error),
            *(error.t for error in timeline.errors),
        ]
        # The one kind of error of which compiles that have ended may be the cause.
        return _Moments(times, (e.t for e in timeline.errors if e.error.type == "KeyError"))

    def _fold_calls(self, moments: _Moments) -> None:
        bounds = self._bounds
        long = [h for h in self._timeline.codes.values() if _length(h) > 4 * bounds.ends]
        total = sum(map(_length, long))
        if total <= self._next.get("calls", 4 * bounds.calls):
            return
        pending = self._calls.pending()
        # Where threads come and go there are too many kinds; then threads count no more.
        levels = [(ends, part) for part in (0, 1) for ends in (bounds.ends, 1)]
        warmups = [history.warmup_end for history in long]
        for ends, part in levels:
            for history, end in zip(long, warmups, strict=True):

                def kind(call: Uncovered, end: int | None = end, part: int = part) -> Kind:
                    return kinds.call(call, end)[part:]

                self._thin_calls(history, moments, pending, kind, ends)
            total = sum(map(_length, long))
            if total <= bounds.calls:
                break
        self._next["calls"] = max(4 * bounds.calls, 2 * total)
        self._forget_forwards()

    def _thin_calls(
        self,
        history: CodeHistory,
        moments: _Moments,
        pending: set[int],
        kind: Callable[[Uncovered], Kind],
        ends: int,
    ) -> None:
        first = {id(c) for c in history.compiles[: max(self._bounds.recent // 2, 1)]}

        def keep(call: Uncovered) -> bool:
            compile_ = call.compile
            if id(call) in pending or compile_ is None:
                return id(call) in pending
            return id(compile_) in first or id(compile_) in pending or moments.near(compile_)

        recent = min(self._bounds.recent, len(history.uncovered) // 4)
        history.uncovered = thin(history.uncovered, kind, keep, ends, recent)
        kept = {id(c) for u in history.uncovered for c in (u.compile, u.leader) if c is not None}
        for compile_ in history.compiles:
            if id(compile_) not in kept and id(compile_) not in pending:
                history.folded.append(compile_.t0)
        history.compiles = [c for c in history.compiles if id(c) in kept or id(c) in pending]

    def _forget_forwards(self) -> None:
        timeline = self._timeline
        kept = {id(c) for h in timeline.codes.values() for c in h.compiles}
        old = len(timeline.forwards) - self._bounds.records
        timeline.forwards = {
            number: compile_
            for at, (number, compile_) in enumerate(timeline.forwards.items())
            if at >= old or id(compile_) in kept
        }

    def _fold_waits(self) -> None:
        used: set[int] = set()
        if len(self._timeline.lock_waits) > self._next.get("lock_waits", self._bounds.records):
            calls = (call for h in self._timeline.codes.values() for call in h.uncovered)
            used = {id(call.wait) for call in calls} | self._calls.pending()
        self._fold("lock_waits", kinds.wait, lambda w: id(w) in used)

    def _fold_codes(self) -> None:
        """Let go of the oldest code objects of which one thread alone knows."""
        codes, folded = self._timeline.codes, self._timeline.folded
        if len(codes) <= 2 * self._bounds.codes:
            return
        pending = self._calls.pending()
        spare = len(codes) - self._bounds.codes
        for number, history in list(codes.items()):
            if spare <= 0:
                break
            if len(history.sightings) > 1 or any(id(c) in pending for c in history.compiles):
                continue
            spare -= 1
            del codes[number]
            if not history.code.internal:
                folded.codes += 1
                folded.compiles += history.compiles_seen

    def _fold_threads(self) -> None:
        """Let go of the oldest threads that have ended and of which nothing is told."""
        timeline, folded = self._timeline, self._timeline.folded
        if len(timeline.threads) <= 2 * self._bounds.threads:
            return
        told, gone = self._told_of(), set[int]()
        spare = len(timeline.threads) - self._bounds.threads
        for tid, thread in list(timeline.threads.items()):
            if spare <= 0:
                break
            if not thread.ended or tid in told:
                continue
            spare -= 1
            del timeline.threads[tid]
            gone.add(tid)
            folded.threads += 1
            folded.callers += thread.called_compiled and not thread.autograd
            folded.with_backward += bool(thread.backwards) and not thread.autograd
        for history in timeline.codes.values():
            history.let_go(gone)
        self._calls.forget(gone)
        self._points.open.forget(gone)

    def _told_of(self) -> set[int]:
        timeline = self._timeline
        lists: tuple[list[Any], ...] = (
            timeline.flagged,
            timeline.eager,
            timeline.stances,
            timeline.under_stance,
            timeline.dense,
            timeline.errors,
            timeline.block_masks,
            timeline.fx_traces,
            timeline.backward_compiles,
            timeline.backwards_failed,
            timeline.graph_captures,
            timeline.graph_replays,
            timeline.resets,
            timeline.tunings,
        )
        told = {record.tid for records in lists for record in records}
        for history in timeline.codes.values():
            told |= {call.tid for call in history.uncovered}
            told |= {compile_.on for compile_ in history.compiles}
            told |= {compile_.tid for compile_ in history.compiles}
        return told


def _part(kind: Callable[[Any], Kind], part: slice) -> Callable[[Any], Kind]:
    return lambda record: kind(record)[part]


def _halves(number: int) -> list[int]:
    """The number, half of it, and so on down to 1."""
    found = []
    while number:
        found.append(number)
        number //= 2
    return found


def _length(history: CodeHistory) -> int:
    return len(history.uncovered) + len(history.compiles)
