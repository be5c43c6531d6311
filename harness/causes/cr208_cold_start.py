"""CR208: no warm-up; several threads make the first call of compiled code at once."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.phrases import quoted
from harness.statements import Remedy, Statement
from harness.timeline.cold import cold_calls, cold_started
from harness.timeline.history import CodeHistory
from harness.timeline.judging import seqs_of
from harness.timeline.model import ResetSeen, Uncovered
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

VALUES = frozenset({Guard.VALUE, Guard.CAPTURED})
"""Guards on Python values, also on what a function captured."""

EXPLANATION = Explanation(
    code="CR208",
    title="cold-start-in-several-threads",
    what=(
        "Nothing warmed the compiled function up: several threads made its first call while no "
        "cache entry existed, and each compiles it."
    ),
    why=(
        "Dynamo looks into the cache before it takes its compile lock and does not look again "
        "after. Threads that arrive before the first compile has ended wait for the lock, one "
        "after another, and then compile what is already there."
    ),
    evidence=(
        "At least two threads whose first call of one code object began before the first compile "
        "that left an entry had ended: a compile without a guard miss before it, or a wait for the "
        "lock or an entry to `compile_wrapper` that began earlier."
    ),
    remedy=Remedy(
        text=(
            "Make the first calls in one thread before the others start, forward and backward, in "
            "the context of the real calls. Where threads each define the function themselves, "
            "define and compile it once, outside: a closure's code and cache are shared anyway."
        ),
        snippet=(
            "for length in (512, 768):\n"
            "    compiled(batch(length)).float().sum().backward()\n"
            "threads = [threading.Thread(target=train) for _ in range(n)]"
        ),
        seen_to_work="torch 2.11.0 on CUDA (10 of 10 runs), torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards", "lock"),
    may_follow=("CR306",),
)


VALUES_REMEDY = Remedy(
    text=(
        "Each value that dynamo guards on needs a compile of its own. Where threads each define "
        "the function (a closure, a lambda), all of them share one code object and its cache, and "
        "what each captured is such a value: define and compile the function once, outside of the "
        "threads, pass what differs as a tensor, and make the first call before they start."
    ),
    snippet=(
        "f = torch.compile(lambda x, scale: (x * scale).sin())   # once; scale is a tensor\n"
        "f(x, scales[0])                        # the first call, forward and backward\n"
        "threads = [threading.Thread(target=loop, args=(f, scale)) for scale in scales]"
    ),
    seen_to_work="torch 2.13.0 on CPU",
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Code objects whose first calls in several threads overlapped without an entry."""
    outcome = Outcome()
    for history in timeline.program_codes():
        if cold_started(history):
            outcome.found.append(_finding(timeline, history, cold_calls(history)))
    return outcome


def _after(call: Uncovered, resets: Sequence[ResetSeen]) -> bool:
    """Whether dynamo had been reset before the call, which emptied the cache."""
    return any(reset.t0 <= call.t for reset in resets)


def _finding(timeline: Timeline, history: CodeHistory, calls: Sequence[Uncovered]) -> Found:
    tids = list(dict.fromkeys(call.tid for call in calls))
    name = history.code.name
    # That nothing had been compiled before is said by nothing but the lack of an event.
    until = max(seq for call in calls for seq in seqs_of(call))
    whole = timeline.saw_all(until)
    statements = [
        Statement(
            f"{len(tids)} threads ({words.names(timeline, tids)}) called `{name}` while its cache "
            f"was empty, and compiled it {words.times(sum(call.times for call in calls))}.",
            words.unseen(timeline, until),
            words.seqs(*(seqs_of(call) for call in calls)),
        )
    ]
    if not whole:
        text = f"Events are missing, so whether `{name}` had been warmed up is not known."
        statements.append(Statement(text, "unknown"))
    value = _value(calls)
    statements += [said for said in (_waited(calls), value) if said is not None]
    first, second = calls[0], next(call for call in calls if call.tid != calls[0].tid)
    # A call of these threads that misses later misses what no warm-up has made.
    threads = set(tids)
    resets = [reset for reset in timeline.resets if reset.t0 <= calls[-1].t]
    later = [call for call in history.uncovered if call.tid in threads]
    return Found(
        code="CR208",
        statements=tuple(statements),
        headline=(
            f"{len(tids)} threads made the first call of `{name}` at once, without a warm-up: "
            "its cache was empty for all of them."
            if whole
            else f"{len(tids)} threads compiled `{name}` at once, and no entry had been recorded "
            "before; events are missing, so a warm-up may be among them."
        ),
        explains=frozenset().union(*(seqs_of(call) for call in later)),
        because=frozenset(seq for reset in resets for seq in reset.seqs),
        independent=len({call.tid for call in calls if not _after(call, resets)}) > 1,
        threads=words.refs(timeline, tids),
        remedy=None if value is None else VALUES_REMEDY,
        stacks=tuple(
            words.stack(
                timeline,
                call.tid,
                title,
                call.where or (call.compile.where if call.compile else ()),
                min(seqs_of(call)),
            )
            for call, title in ((first, "called it first"), (second, "called it meanwhile"))
        ),
    )


def _waited(calls: Sequence[Uncovered]) -> Statement | None:
    """How many of the calls waited for the compile lock, and how long; None: none did."""
    waits = [call.wait for call in calls if call.wait is not None]
    if not waits:
        return None
    longest = max(((wait.t1 or wait.t0) - wait.t0) / 1e9 for wait in waits)
    return Statement(
        f"{words.count(len(waits), 'call')} waited for dynamo's compile lock, "
        f"{longest:.2f} s at most.",
        "observed",
        words.seqs(*(wait.seqs for wait in waits)),
    )


def _value(calls: Sequence[Uncovered]) -> Statement | None:
    """That one's entry rejects another one's call over a value: a captured one, an argument."""
    made = {c.compile.compile_id: c for c in calls if c.compile is not None}
    for call in calls:
        for reason in call.compile.reasons if call.compile else ():
            other = made.get(reason.entry) if reason.entry is not None else None
            if other is not None and other.tid != call.tid and reason.guards & VALUES:
                text = (
                    f"The threads call `{call.code.name}` with a value that differs: what one of "
                    f"them compiled does not fit another's call, for the guard "
                    f"{quoted(_guard(reason.text))}."
                )
                return Statement(text, "observed", words.seqs(seqs_of(other), seqs_of(call)))
    return None


def _guard(text: str) -> str:
    """A guard without the entry's id before it and the source line after it."""
    return text.split("\n", 1)[0].split("  #", 1)[0].partition(": ")[2].strip()
