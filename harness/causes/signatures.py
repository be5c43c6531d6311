"""Exceptions that torch raises for one reason only, found by their type, text and place."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.errors import distinct, short
from harness.events.values import ErrorLink, Frame
from harness.statements import Stack, Statement
from harness.timeline.model import ErrorSeen
from harness.timeline.timeline import Timeline


@dataclass(frozen=True)
class Signature:
    """What an exception looks like.

    Attributes:
        types: its class, as the recording names it; any if empty.
        text: what its message contains.
        files: ends of file names, one of which a frame of its traceback has; any if empty.
        function: the function of that frame; any if empty.
        innermost: that frame is the one that raised.
    """

    types: tuple[str, ...]
    text: re.Pattern[str]
    files: tuple[str, ...] = ()
    function: str = ""
    innermost: bool = False

    def fits(self, link: ErrorLink) -> bool:
        """Whether an exception looks like that."""
        if self.types and link.type not in self.types:
            return False
        if not self.text.search(link.message):
            return False
        if not self.files:
            return True
        frames = link.frames[-1:] if self.innermost else link.frames
        return any(self._is_there(frame) for frame in frames)

    def _is_there(self, frame: Frame) -> bool:
        named = not self.function or frame.function == self.function
        return named and frame.file.replace("\\", "/").endswith(self.files)


@dataclass(frozen=True)
class Case:
    """An error of a thread, and the exception of its chain that has the signature."""

    error: ErrorSeen
    link: ErrorLink


def cases(timeline: Timeline, signatures: Sequence[Signature]) -> list[Case]:
    """Errors with one of the signatures, each exception once, in order."""
    found = list(_cases(timeline.errors, signatures))
    kept = {id(error) for error in distinct([case.error for case in found])}
    return [case for case in found if id(case.error) in kept]


def explained(timeline: Timeline, signatures: Sequence[Signature]) -> frozenset[int]:
    """Seqs of all errors that hold such an exception, those that raise it again elsewhere too."""
    return frozenset(case.error.seq for case in _cases(timeline.errors, signatures))


def _cases(errors: Iterable[ErrorSeen], signatures: Sequence[Signature]) -> Iterator[Case]:
    for error in errors:
        fits = (link for link in error.chain if any(s.fits(link) for s in signatures))
        link = next(fits, None)
        if link is not None:
            yield Case(error, link)


def alive(timeline: Timeline, case: Case) -> list[int]:
    """Other threads that had begun and not ended when the error was recorded, but autograd's."""
    t, tid = case.error.t, case.error.tid
    return [
        thread.tid
        for thread in timeline.threads.values()
        if thread.tid != tid
        and not thread.autograd
        and thread.t0 <= t
        and (not thread.ended or thread.t1 >= t)
    ]


def statement(timeline: Timeline, case: Case, also: str = "") -> Statement:
    """``a` died of `RuntimeError: ...``, and what else is to be said of it."""
    who = f"`{timeline.name(case.error.tid)}`"
    how = {"thread": f"{who} died of", "future": f"A call in {who} failed with"}
    how_main = f"The program's main thread, {who}, failed with"
    text = f"{how.get(case.error.via, how_main)} {said(case)}{also}."
    return Statement(text, "observed", (case.error.seq,))


def said(case: Case, limit: int = 160) -> str:
    """The exception in one line, cut."""
    found = ErrorSeen(
        tid=case.error.tid,
        t=case.error.t,
        seq=case.error.seq,
        via=case.error.via,
        chain=(case.link,),
        future=None,
    )
    return short(found, limit)


def stacks(timeline: Timeline, found: Sequence[Case], limit: int = 2) -> tuple[Stack, ...]:
    """Where the first of them were raised."""
    return tuple(
        words.stack(
            timeline,
            case.error.tid,
            "raised the error",
            tuple(reversed(case.link.frames or case.error.error.frames)),
            case.error.seq,
        )
        for case in found[:limit]
    )
