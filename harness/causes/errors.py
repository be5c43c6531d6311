"""Which errors of a run are accounted for by findings already made."""

from collections.abc import Iterable, Sequence

from harness.causes.base import Found
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
    known = [error for error in timeline.errors if error.seq in codes]
    for error in timeline.errors:
        if error.seq not in codes:
            source = next((other for other in known if _comes_from(error, other)), None)
            if source is not None:
                codes[error.seq] = codes[source.seq]
    return codes


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
    shown = frozenset[int]().union(
        *(e.ids for e in timeline.errors if e.via != "future" or handled(timeline, e))
    )
    found: list[ErrorSeen] = []
    for error in timeline.errors:
        if error.via == "future" and not handled(timeline, error) and error.error.id not in shown:
            found.append(error)
            shown |= {error.error.id}
    return found


def distinct(errors: Sequence[ErrorSeen]) -> list[ErrorSeen]:
    """Errors without those that only raise, chain or group an exception of an earlier one."""
    kept: list[ErrorSeen] = []
    seen = frozenset[int]()
    for error in errors:
        if not error.ids & seen:
            kept.append(error)
        seen |= error.ids
    return kept


def _comes_from(error: ErrorSeen, source: ErrorSeen) -> bool:
    if error.ids & source.ids:
        return True
    said = {(link.type, link.message) for link in source.chain if link.message}
    if any((link.type, link.message) in said for link in error.chain):
        return True
    later = error.t >= source.t
    if later and error.error.type in _CONSEQUENCES:
        return True
    # A program may put the text of the error into one of its own: "worker 3 failed: ...".
    whole = source.error.message
    return later and len(whole) >= 16 and whole in error.error.message
