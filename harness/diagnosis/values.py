"""Values that every part of a report is made of."""

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every part of a report: immutable, compared by value."""


class ThreadRef(Value, frozen=True):
    """A thread of process ``pid``. Names are for people; ``tid`` is the native thread id.

    ``life`` tells threads apart that had one native id, one after another.
    """

    tid: int
    name: str
    pid: int
    life: int = 1
