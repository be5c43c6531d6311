"""Tells threads with one native id apart: the system gives the id of a thread that ended again.

Such a thread gets a number of its own for the time of a timeline, so that everything that is kept
by thread keeps the two apart. The first thread with an id keeps the id as its number.
"""

import bisect
from typing import Any

import msgspec

from harness.events import schema

_LIFE = 1 << 32
_IDS = 1 << 14
"""So many ids are followed that several threads had; the threads of further ones are not told
apart."""
_BEGINS = 256
"""Of one id so many last beginnings are known; what is older belongs to the thread before them."""


def native(number: int) -> int:
    """The native id of the thread with this number."""
    return number % _LIFE


def life(number: int) -> int:
    """Which of the threads with this native id it is, counted from 1."""
    return number // _LIFE + 1


def previous(number: int) -> int:
    """The number of the thread that had the native id before. ``life(number)`` must be above 1."""
    return number - _LIFE


class Lives:
    """Where, in a process's numbering, one thread's life ends and the next one's begins."""

    def __init__(self) -> None:
        self._begins: dict[int, list[int]] = {}
        self._dropped: dict[int, int] = {}

    def number(self, tid: int, seq: int) -> int:
        """The number of the thread that had a native id when event ``seq`` was written."""
        begins = self._begins.get(tid)
        if begins is None:
            return tid
        return tid + _LIFE * (self._dropped.get(tid, 0) + bisect.bisect_right(begins, seq))

    def shared(self, tid: int) -> bool:
        """Whether several threads had the id."""
        return tid in self._begins

    def begin(self, tid: int, seq: int) -> None:
        """Let the id be another thread's from event ``seq`` on."""
        if tid not in self._begins and len(self._begins) >= _IDS:
            return
        begins = self._begins.setdefault(tid, [])
        if not begins or seq > begins[-1]:
            begins.append(seq)
        if len(begins) > _BEGINS:
            del begins[0]
            self._dropped[tid] = self._dropped.get(tid, 0) + 1

    def renumber(self, event: schema.Event) -> schema.Event:
        """The event, with its threads' numbers in the place of native ids."""
        if not self._begins:
            return event
        names = _TID_FIELDS[type(event)]
        if not names and event.tid not in self._begins:
            return event
        changes: dict[str, Any] = {}
        if event.tid in self._begins:
            tid = self.number(event.tid, event.seq)
            if tid != event.tid:
                changes["tid"] = tid
        if names:
            data = getattr(event, "data")  # noqa: B009 - of the kinds that have tid fields
            others = self._others(data, names, event.seq)
            if others:
                changes["data"] = msgspec.structs.replace(data, **others)
        return msgspec.structs.replace(event, **changes) if changes else event

    def _others(self, data: msgspec.Struct, names: tuple[str, ...], seq: int) -> dict[str, Any]:
        """The fields that name other threads, where their numbers are not their ids."""
        found: dict[str, Any] = {}
        for name in names:
            value = getattr(data, name)
            if isinstance(value, tuple):
                new: Any = tuple(self.number(tid, seq) for tid in value)
            else:
                new = None if value is None else self.number(value, seq)
            if new != value:
                found[name] = new
        return found


def _tid_fields(kind: type[schema.BaseEvent]) -> tuple[str, ...]:
    """Fields of an event's data that name other threads: ``..._tid``, ``..._tids``.

    A thread that is just being started is none: its number is for the reader to find.
    """
    data = next((f.type for f in msgspec.structs.fields(kind) if f.name == "data"), None)
    return tuple(
        name
        for name in getattr(data, "__struct_fields__", ())
        if name.endswith(("_tid", "_tids")) and name != "child_tid"
    )


_TID_FIELDS = {kind: _tid_fields(kind) for kind in schema.Event.__args__}
