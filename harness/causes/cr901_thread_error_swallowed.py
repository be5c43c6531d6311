"""CR901: an error in a thread or a future that the program never learned of."""

from collections import defaultdict
from collections.abc import Container, Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.errors import explained, handled, short, torchs_own, unread
from harness.statements import Note, Remedy, Stack, Statement
from harness.timeline.model import ErrorSeen
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR901",
    title="thread-error-swallowed",
    what=(
        "A thread died, or a future's call failed, and the program went on and ended as if nothing "
        "had happened: exit code 0, or no word about it."
    ),
    why=(
        "Python prints a thread's exception to stderr and carries on. An executor keeps it in the "
        "future, and a future that nobody asks keeps it to itself."
    ),
    evidence=(
        "An exception in a future whose `result()` or `exception()` nobody called; or a thread "
        "that died of an error explained by another finding, in a program that ended with exit "
        "code 0. An error without a frame of the program's in a thread that torch started for "
        "itself is a note."
    ),
    remedy=Remedy(
        text="Ask every future for its result, and let a thread's error stop the program.",
        snippet=(
            "for future in concurrent.futures.as_completed(futures):\n"
            "    future.result()                    # raises what the call raised"
        ),
    ),
    versions="all",
    needs=("threads", "futures"),
    may_follow=("CR1", "CR2", "CR3", "CR4", "CR5", "CR6", "CR904"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Errors that were swallowed."""
    known = explained(timeline, earlier)
    outcome = Outcome(notes=_notes(timeline, known))
    futures = [e for e in unread(timeline) if e.seq in known or not torchs_own(timeline, e)]
    zero = timeline.ended is not None and timeline.ended.exit_code == 0
    died = [e for e in timeline.errors if e.via == "thread" and e.seq in known and zero]
    if not futures and not died:
        return outcome
    own = [error for error in futures if error.seq not in known]
    errors = sorted([*futures, *died], key=lambda error: error.t)
    tids = [error.tid for error in errors]
    found = Found(
        code="CR901",
        statements=tuple(_statement(timeline, error) for error in errors),
        headline=_headline(timeline, errors, zero=zero),
        explains=frozenset(error.seq for error in own),
        because=frozenset(error.seq for error in errors if error.seq in known),
        independent=bool(own),
        threads=words.refs(timeline, tids),
        stacks=tuple(_stack(timeline, error) for error in errors[:2]),
    )
    outcome.found.append(found)
    return outcome


def _notes(timeline: Timeline, known: Container[int]) -> list[Note]:
    own: dict[tuple[int, str, str], list[ErrorSeen]] = defaultdict(list)
    for error in timeline.errors:
        if error.seq not in known and torchs_own(timeline, error) and not handled(timeline, error):
            own[error.tid, error.via, short(error)].append(error)
    return [_note(timeline, errors) for errors in own.values()]


def _note(timeline: Timeline, errors: Sequence[ErrorSeen]) -> Note:
    first = errors[0]
    kept = f"was kept in {words.count(len(errors), 'future')} that nobody asked, in"
    return Note(
        text=(
            f"{short(first)} {kept if first.via == 'future' else 'ended'} "
            f"`{timeline.name(first.tid)}`, a thread that torch started for itself. No frame of "
            "the program's is in it, so it is none of the program's errors."
        ),
        code="CR901",
        pid=timeline.pid,
        evidence=words.seqs((timeline.threads[first.tid].creation_seq,), (e.seq for e in errors)),
    )


def _statement(timeline: Timeline, error: ErrorSeen) -> Statement:
    what = short(error)
    name = timeline.name(error.tid)
    if error.via == "thread":
        return Statement(
            f"`{name}` died of {what}, and the program ended with exit code 0.",
            "observed",
            (error.seq,),
        )
    text = f"A future's call in `{name}` failed with {what}, and nobody asked for its result"
    if timeline.end_seq is None:
        return Statement(f"{text} before the program was ended.", "inferred", (error.seq,))
    return Statement(f"{text}.", words.unseen(timeline), (error.seq, timeline.end_seq))


def _headline(timeline: Timeline, errors: Sequence[ErrorSeen], *, zero: bool) -> str:
    first = errors[0]
    who = words.object_(timeline, (error.tid for error in errors))
    end = "ended with exit code 0" if zero else "never asked for it"
    return f"An error in {who} was swallowed ({short(first)}): the program {end}."


def _stack(timeline: Timeline, error: ErrorSeen) -> Stack:
    frames = tuple(reversed(error.error.frames))
    return words.stack(timeline, error.tid, "raised the error", frames, error.seq)
