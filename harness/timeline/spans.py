"""Spans of time: those that are under way while events come in, and an index of finished ones."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from harness.events import schema
from harness.timeline.model import Span

SpanT = TypeVar("SpanT", bound=Span)

_MAX_OPEN = 64
"""So many spans of one kind may be open in one thread; of more, the outermost are given up."""
_NEVER = 1 << 200


class OpenSpans:
    """Spans that threads are inside of, innermost last, by thread and kind."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, type[Span]], list[Span]] = {}

    def opened(self, span: SpanT, event: schema.BaseEvent) -> SpanT:
        """Note that a span began with ``event``, if it is not over with it."""
        if event.edge == "enter":
            spans = self._open.setdefault((span.tid, type(span)), [])
            spans.append(span)
            del spans[:-_MAX_OPEN]
        return span

    def close(self, kind: type[SpanT], event: schema.BaseEvent) -> SpanT | None:
        """End the innermost span of a kind in the event's thread; None if none is open."""
        spans = self._open.get((event.tid, kind))
        if not spans:
            return None
        span = spans.pop()
        end(span, event)
        return span if isinstance(span, kind) else None

    def forget(self, tids: set[int]) -> None:
        """Drop what is kept of threads that have ended."""
        for key in [key for key in self._open if key[0] in tids]:
            del self._open[key]

    def __iter__(self) -> Iterator[Span]:
        return (span for spans in self._open.values() for span in spans)


def end(span: Span, event: schema.BaseEvent) -> None:
    """End a span with an event, at its beginning if the clock went back meanwhile."""
    span.t1, span.seqs = max(event.t_ns, span.t0), (*span.seqs, event.seq)


class Index(Generic[SpanT]):
    """Finds the spans that cover a time, in time that grows with their number's logarithm.

    Those that never ended cover every time after their beginning.
    """

    def __init__(self, spans: Iterable[SpanT]) -> None:
        in_order = list(spans)
        self._order = sorted(range(len(in_order)), key=lambda n: in_order[n].t0)
        self._spans: Sequence[SpanT] = in_order
        self._begins = [in_order[n].t0 for n in self._order]
        self._leaves = 1 << max(len(in_order) - 1, 0).bit_length()
        # A heap of the latest ends: each node holds the later one of its two halves.
        self._ends = [-1] * (2 * self._leaves)
        for place, number in enumerate(self._order):
            stop = in_order[number].t1
            self._ends[self._leaves + place] = _NEVER if stop is None else stop
        for node in range(self._leaves - 1, 0, -1):
            self._ends[node] = max(self._ends[2 * node], self._ends[2 * node + 1])

    def covering(self, t: int) -> list[SpanT]:
        """The spans that cover time ``t``, in the order in which they were given."""
        return self.meeting(t, t)

    def meeting(self, t0: int, t1: int) -> list[SpanT]:
        """The spans that have a moment between ``t0`` and ``t1``, in the order given."""
        before = bisect.bisect_right(self._begins, t1)
        return [self._spans[number] for number in sorted(self._ending_from(t0, before))]

    def _ending_from(self, t: int, before: int) -> Iterator[int]:
        """Those of the first ``before`` spans that end at ``t`` or later."""
        todo = [(1, 0, self._leaves)]
        while todo:
            node, low, high = todo.pop()
            if low >= before or self._ends[node] < t:
                continue
            if node >= self._leaves:
                yield self._order[low]
                continue
            middle = (low + high) // 2
            todo += [(2 * node, low, middle), (2 * node + 1, middle, high)]
