"""How much one process may write, however long it runs: bounds on the events that are kept.

A loop's identical events are thinned out in their thread (``worth_recording``), but a program that
makes new threads all night starts every thread's count anew, and one that compiles ever new code
makes ever new kinds of event. So kept events are counted for the whole process as well: of one kind
the first ``PER_KIND`` are written, of one point the first ``PER_POINT``, and then only powers of
two. The first ``NOVEL`` of a kind are written in any case, so that what happens for the first time
after eight hours is there.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PER_KIND = 2048
PER_POINT = 4096
NOVEL = 8
#: So many kinds are told apart in a process; what comes after them is one kind a point.
KINDS = 2048
#: An error with its traceback and its causes can take a hundred times the room of another event.
_PER_KIND = {"thread_error": 256}
#: Written once, or bounded by themselves; of threads there is a start and an end for the first few
#: thousand and for those that have something else to say.
_EXEMPT = frozenset(
    {
        "header",
        "probe",
        "gpu",
        "compile_detail",
        "invariants",
        "left_out",
        "thread_start",
        "thread_end",
        "end",
    }
)
_OTHERS = object()

# Asked at each event: a set's own method takes none of Python's frames.
worth_recording = frozenset({*range(1, 9), *(1 << power for power in range(4, 64))}).__contains__
"""Whether the ``count``-th event of a kind is written: the first eight, then powers of two.

This bounds what a loop of identical events can write, and the last line still says within a factor
of two how many there were, whatever ends the process.
"""


class Bounds:
    """Counts the kept events of one process. Safe to call from several threads at once."""

    def __init__(self) -> None:
        # next() of a counter is atomic, where adding to a number is not.
        self._of_point: dict[str, Iterator[int]] = {}
        self._of_kind: dict[tuple[str, object], Iterator[int]] = {}
        self._left_out: dict[str, Iterator[int]] = {}
        self.left_out: dict[str, int] = {}

    def admit(self, point: str, data: Mapping[str, Any] | None) -> bool:
        """Whether to write one more event; one that is not written is to be told to ``leave_out``.

        An event that ends something is not asked about: it is written if its beginning was.
        """
        if point in _EXEMPT:
            return True
        of_point = next(_counter(self._of_point, point))
        key = (point, kind_of(point, data))
        if key not in self._of_kind and len(self._of_kind) >= KINDS:
            key = (point, _OTHERS)
        of_kind = next(_counter(self._of_kind, key))
        if of_kind <= NOVEL and key[1] is not _OTHERS:
            return True
        per_kind = _PER_KIND.get(point, PER_KIND)
        if of_kind <= per_kind and of_point <= PER_POINT:
            return True
        return worth_recording(of_kind)

    def leave_out(self, point: str) -> bool:
        """Count an event that is not written; return whether the number is worth writing now."""
        number = next(_counter(self._left_out, point))
        # Of two threads the later one may write the smaller number: the error is one.
        self.left_out[point] = number
        return worth_recording(number)


def kind_of(point: str, data: Mapping[str, Any] | None) -> object:
    """What makes two events of a point the same kind of thing: the code, the outcome, the place."""
    data = data or {}
    if point == "thread_error":
        return _kind_of_error(data)
    if point == "caches":  # one for each code object, at the end
        return None
    code = data.get("code")
    return (
        code["id"] if code else None,
        data.get("first"),
        data.get("fx_flag"),
        str(data.get("route") or data.get("kind") or data.get("tracer") or data.get("name"))[:80],
        bool(data.get("error") or data.get("compiling_tids")),
    )


def _kind_of_error(data: Mapping[str, Any]) -> object:
    chain: Sequence[Mapping[str, Any]] = data.get("chain") or ({},)
    frames = chain[0].get("frames") or ((None, None),)
    return (data.get("via"), chain[0].get("type"), frames[-1][0], frames[-1][1])


def _counter(counters: dict[Any, Iterator[int]], key: object) -> Iterator[int]:
    # Two threads may both make one: setdefault keeps the first for both.
    return counters.get(key) or counters.setdefault(key, itertools.count(1))
