"""What a cause says: statements with their certainty, remedies, stacks and who is meant.

Causes make them and a report is put together from them, so that they belong to neither.
"""

from typing import Literal

import msgspec

from harness.events.values import Frame

Certainty = Literal["observed", "inferred", "unknown"]


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


class Statement(Value, frozen=True):
    """One sentence and how it is known.

    ``observed``: events say it. ``inferred``: it follows from events by a rule that the sentence
    states. ``unknown``: it could not be decided, and the sentence says why.
    """

    text: str
    certainty: Certainty
    evidence: tuple[int, ...] = ()


class Remedy(Value, frozen=True):
    """What removes the cause. ``seen_to_work``: where it was run and seen to work; may be empty."""

    text: str
    snippet: str = ""
    seen_to_work: str = ""


class Stack(Value, frozen=True):
    """A stack to show beside another; ``frames`` run from the innermost call to the outermost."""

    thread: ThreadRef
    title: str
    frames: tuple[Frame, ...]
    evidence: tuple[int, ...] = ()


class SharedState(Value, frozen=True):
    """State that two threads touched: its name, who wrote it and who read it."""

    name: str
    writer: str
    reader: str


class Note(Value, frozen=True):
    """An observation that is no finding. ``code``: the cause that it would be an instance of."""

    text: str
    certainty: Certainty = "observed"
    code: str = ""
    pid: int = 0
    evidence: tuple[int, ...] = ()
