"""CR901: an error in a thread or a future that the program never learned of."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.errors import explained, unread
from harness.diagnosis.report import Remedy, Stack, Statement
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
        "code 0."
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
    may_follow=("CR1", "CR2", "CR3", "CR4"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Errors that were swallowed."""
    futures = unread(timeline)
    known = explained(timeline, earlier)
    zero = timeline.ended is not None and timeline.ended.exit_code == 0
    died = [e for e in timeline.errors if e.via == "thread" and e.seq in known and zero]
    if not futures and not died:
        return Outcome()
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
    return Outcome(found=[found])


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
    return Statement(f"{text}.", "observed", (error.seq, timeline.end_seq))


def _headline(timeline: Timeline, errors: Sequence[ErrorSeen], *, zero: bool) -> str:
    first = errors[0]
    who = words.object_(timeline, (error.tid for error in errors))
    end = "ended with exit code 0" if zero else "never asked for it"
    return f"An error in {who} was swallowed ({short(first)}): the program {end}."


def short(error: ErrorSeen, limit: int = 160) -> str:
    """``ValueError: message``, on one line and cut."""
    link = error.error
    message = " ".join(link.message.split())
    message = message if len(message) <= limit else f"{message[:limit]}..."
    return f"`{link.type}: {message}`" if message else f"`{link.type}`"


def _stack(timeline: Timeline, error: ErrorSeen) -> Stack:
    frames = tuple(reversed(error.error.frames))
    return words.stack(timeline, error.tid, "raised the error", frames, error.seq)
