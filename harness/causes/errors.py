"""Which errors of a run are accounted for by findings already made."""

import itertools
from collections.abc import Iterable, Sequence

from harness.causes.base import Found
from harness.phrases import quoted
from harness.timeline import frames
from harness.timeline.model import ErrorSeen
from harness.timeline.timeline import Timeline

_CONSEQUENCES = frozenset(
    {
        "threading.BrokenBarrierError",
        "concurrent.futures._base.CancelledError",
        "concurrent.futures.process.BrokenProcessPool",
        "concurrent.futures.thread.BrokenThreadPool",
        "asyncio.exceptions.CancelledError",
        "queue.ShutDown",
    }
)
"""Errors that one thread gets because another one gave up."""
_MAX_TEXTS = 256
"""So many different errors are looked for in the texts of others."""


def explained(timeline: Timeline, found: Iterable[Found]) -> dict[int, tuple[str, ...]]:
    """Codes that account for each error, by the error event's seq.

    An error is accounted for if a finding says so, if it is or contains the same exception object
    (raised again, chained, in a group), if it has the same type and message as one of those, or if
    it is of a kind that threads get when another one gives up.
    """
    codes: dict[int, tuple[str, ...]] = {}
    for error in timeline.errors:
        own = tuple(finding.code for finding in found if error.seq in finding.explains)
        if own:
            codes[error.seq] = own
    known = _Known(error for error in timeline.errors if error.seq in codes)
    derived = {
        error.seq: codes[source.seq]
        for error in timeline.errors
        if error.seq not in codes and (source := known.source_of(error)) is not None
    }
    return codes | derived


def handled(timeline: Timeline, error: ErrorSeen) -> bool:
    """Whether an error was kept in a future that somebody asked, so that the program knew of it."""
    return error.via == "future" and error.future in timeline.futures_read


def torchs_own(timeline: Timeline, error: ErrorSeen) -> bool:
    """Whether an error is torch's own affair, which no program can hear of or prevent.

    It is if a thread that torch started for itself raised it or put it into a future, and no frame
    of the program's is in the exception, its causes or its contexts. At exit inductor closes its
    pool of compile workers, for one, with ``RuntimeError: SubprocPool closed`` in the futures of
    the jobs that are left (``torch/_inductor/compile_worker/subproc_pool.py``).
    """
    thread = timeline.threads.get(error.tid)
    return (
        error.via != "main"
        and thread is not None
        and frames.is_started_by_torch(thread.creation)
        and not any(frame.user for link in error.chain for frame in link.frames)
    )


def unread(timeline: Timeline) -> list[ErrorSeen]:
    """Errors kept in futures that nobody asked, each exception once."""
    shown = {
        number
        for error in timeline.errors
        if error.via != "future" or handled(timeline, error)
        for number in error.ids
    }
    found: list[ErrorSeen] = []
    for error in timeline.errors:
        if error.via == "future" and not handled(timeline, error) and error.error.id not in shown:
            found.append(error)
            shown.add(error.error.id)
    return found


def distinct(errors: Sequence[ErrorSeen]) -> list[ErrorSeen]:
    """Errors without those that only raise, chain or group an exception of an earlier one."""
    kept: list[ErrorSeen] = []
    seen: set[int] = set()
    for error in errors:
        if not error.ids & seen:
            kept.append(error)
        seen |= error.ids
    return kept


def short(error: ErrorSeen, limit: int = 160) -> str:
    """``ValueError: message``, quoted: of the message its first line, cut."""
    link = error.error
    message = next(iter(link.message.strip().splitlines()), "").strip()
    message = message if len(message) <= limit else f"{message[:limit]}..."
    return quoted(f"{link.type}: {message}" if message else link.type)


class _Known:
    """Errors that are accounted for, found by what another error can have of them."""

    def __init__(self, errors: Iterable[ErrorSeen]) -> None:
        self._errors = list(errors)
        self._by_id: dict[int, int] = {}
        self._by_words: dict[tuple[str, str], int] = {}
        texts: dict[str, int] = {}
        for place, error in enumerate(self._errors):
            for number in error.ids:
                self._by_id.setdefault(number, place)
            for link in error.chain:
                if link.message:
                    self._by_words.setdefault((link.type, link.message), place)
            if len(error.error.message) >= 16:
                texts.setdefault(error.error.message, place)
        self._texts = list(texts.items())[:_MAX_TEXTS]

    def source_of(self, error: ErrorSeen) -> ErrorSeen | None:
        """The first of them that an error is, contains, repeats or is a consequence of."""
        places = [self._by_id[number] for number in error.ids if number in self._by_id]
        said = ((link.type, link.message) for link in error.chain)
        places += [self._by_words[words] for words in said if words in self._by_words]
        # A program may put the text of the error into one of its own: "worker 3 failed: ...".
        message = error.error.message
        places += [
            place
            for text, place in self._texts
            if self._errors[place].t <= error.t and text in message
        ]
        if error.error.type in _CONSEQUENCES:
            earlier = (n for n, known in enumerate(self._errors) if known.t <= error.t)
            places += itertools.islice(earlier, 1)
        return self._errors[min(places)] if places else None
