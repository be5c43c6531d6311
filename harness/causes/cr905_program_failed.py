"""CR905: the program failed by itself."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.endings import exited_by_itself
from harness.causes.errors import distinct, explained, handled, short, torchs_own
from harness.statements import Remedy, Statement
from harness.timeline.model import ErrorSeen
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR905",
    title="program-failed-by-itself",
    what=(
        "An exception ended a thread or the program, or it exited with a code other than 0, and "
        "nothing that was seen of compiles and threads accounts for it."
    ),
    why=(
        "Most errors are plain errors. A frame of `compile_wrapper` in a traceback proves nothing: "
        "every call of compiled code has one, so it is there under an ordinary ValueError too."
    ),
    evidence=(
        "An error, or an exit code other than 0, that no other finding accounts for: it is not, "
        "and does not contain or repeat, an exception that one does."
    ),
    remedy=Remedy(text="Read the traceback: the innermost frame of the program's own code first."),
    versions="all",
    needs=("threads",),
)

_SAID = Remedy(text="The text that the program left with says why; look for where it is raised.")
_SILENT = Remedy(
    text=(
        "There is no traceback: look at what the program printed last, and for the `sys.exit`, "
        "`os._exit` or `SystemExit` that gives this code."
    )
)
_TAIL_LINES = 8


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Errors and exits that nothing else accounts for."""
    known = explained(timeline, earlier)
    open_ = [
        error
        for error in timeline.errors
        if error.seq not in known
        and not handled(timeline, error)
        and not torchs_own(timeline, error)
    ]
    errors = distinct(open_)
    if errors:
        return Outcome(found=[_of_errors(timeline, errors, open_)])
    raised = known or any(found.code in {"CR301", "CR302", "CR310"} for found in earlier)
    if exited_by_itself(timeline) and not raised:
        return Outcome(found=[_of_exit(timeline)])
    return Outcome()


def _of_errors(timeline: Timeline, errors: Sequence[ErrorSeen], all_: Sequence[ErrorSeen]) -> Found:
    first = errors[0]
    ended = timeline.ended
    zero = ended is not None and ended.exit_code == 0
    more = f", and {words.count(len(errors) - 1, 'other error')}" if len(errors) > 1 else ""
    end = "; the process still ended with exit code 0" if zero else ""
    return Found(
        code="CR905",
        statements=tuple(_statement(timeline, error, zero=zero) for error in errors),
        headline=(
            f"The program failed by itself: {_who(timeline, first)} raised {short(first)}{more}"
            f"{end}."
        ),
        explains=frozenset(error.seq for error in all_),
        threads=words.refs(timeline, (error.tid for error in errors)),
        stacks=tuple(
            words.stack(
                timeline,
                error.tid,
                "raised the error",
                tuple(reversed(error.error.frames)),
                error.seq,
            )
            for error in errors[:2]
        ),
    )


def _who(timeline: Timeline, error: ErrorSeen) -> str:
    if error.via == "main":
        return "the main program"
    call = "a future's call in " if error.via == "future" else ""
    return f"{call}thread `{timeline.name(error.tid)}`"


def _statement(timeline: Timeline, error: ErrorSeen, *, zero: bool) -> Statement:
    user = [frame for frame in error.error.frames if frame.user]
    place = f" in `{user[-1].function}` at {user[-1].file}:{user[-1].line}" if user else ""
    end = "; the process still ended with exit code 0" if zero else ""
    text = f"{_who(timeline, error)} raised {short(error)}{place}{end}."
    return Statement(words.begin(text), "observed", (error.seq,))


def _of_exit(timeline: Timeline) -> Found:
    """The program left with an exit code, and said why or not."""
    ended = timeline.ended
    assert ended is not None
    text = " ".join(timeline.exit_text.split())
    statements = [Statement(f"The program ended with exit code {ended.exit_code}.", "observed")]
    if text:
        evidence = (timeline.end_seq,) if timeline.end_seq else ()
        statements.append(
            Statement(f"It left by `sys.exit` and said: {text}", "observed", evidence)
        )
    else:
        said = "No exception that ended a thread or the program was seen."
        statements.append(Statement(said, "observed"))
    tail = ended.stderr_tail.strip().splitlines()[-_TAIL_LINES:]
    if tail and not text:
        printed = "The last it printed: " + " | ".join(line.strip() for line in tail)
        statements.append(Statement(printed, "observed"))
    last = text or (tail[-1].strip() if tail else "")
    said = f": {last[:160]}" if last else ""
    return Found(
        code="CR905",
        statements=tuple(statements),
        headline=f"The program ended with exit code {ended.exit_code} by itself{said}.",
        remedy=_SAID if text else _SILENT,
        only_exit=True,
    )
