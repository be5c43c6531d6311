"""CR208: no warm-up; several threads make the first call of compiled code at once."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.judging import seqs_of
from harness.diagnosis.report import Remedy, Statement
from harness.timeline.model import CodeHistory, Uncovered
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

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
            "the context of the real calls."
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
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Code objects whose first calls in several threads overlapped without an entry."""
    outcome = Outcome()
    for history in timeline.program_codes():
        calls = cold_calls(history)
        if len({call.tid for call in calls}) >= 2:
            outcome.found.append(_finding(timeline, history, calls))
    return outcome


def cold_calls(history: CodeHistory) -> list[Uncovered]:
    """Compiling calls that began before any entry existed, in order."""
    ends = [c.t1 for c in history.compiles if c.made_entry and c.t1 is not None]
    first = min(ends, default=None)
    calls = [call for call in history.uncovered if _found_nothing(call, first)]
    threads = {call.tid for call in calls}
    if first is None and len(threads) > 1 and not _overlap(calls):
        return []
    return sorted(calls, key=lambda call: call.t)


def _found_nothing(call: Uncovered, first: int | None) -> bool:
    """Whether a call began before the first entry existed, at time ``first``, and compiled."""
    if call.compile is None:
        return False
    # Torch gives reasons only for entries that the call was checked against.
    rejected = any(Guard.UNEXPECTED not in reason.guards for reason in call.compile.reasons)
    return first is None or call.t < first or (call.no_entry and not rejected)


def cold_started(history: CodeHistory) -> bool:
    """Whether several threads cold-started it."""
    return len({call.tid for call in cold_calls(history)}) >= 2


def _overlap(calls: Sequence[Uncovered]) -> bool:
    """Whether any two of the calls were under way at once, in different threads."""
    spans = [(c.t, c.compile.t1 if c.compile else c.t, c.tid) for c in calls]
    return any(
        tid != other and begin < other_begin and (end is None or other_begin < end)
        for begin, end, tid in spans
        for other_begin, _, other in spans
    )


def _finding(timeline: Timeline, history: CodeHistory, calls: Sequence[Uncovered]) -> Found:
    tids = list(dict.fromkeys(call.tid for call in calls))
    name = history.code.name
    waits = [call.wait for call in calls if call.wait is not None]
    statements = [
        Statement(
            f"{len(tids)} threads ({words.names(timeline, tids)}) called `{name}` while its cache "
            f"was empty, and compiled it {words.times(len(calls))}.",
            "observed",
            words.seqs(*(seqs_of(call) for call in calls)),
        )
    ]
    if waits:
        longest = max(((w.t1 or w.t0) - w.t0) / 1e9 for w in waits)
        statements.append(
            Statement(
                f"{words.count(len(waits), 'call')} waited for dynamo's compile lock, "
                f"{longest:.2f} s at most.",
                "observed",
                words.seqs(*(wait.seqs for wait in waits)),
            )
        )
    first, second = calls[0], next(call for call in calls if call.tid != calls[0].tid)
    # A call of these threads that misses later misses what no warm-up has made.
    later = [call for call in history.uncovered if call.tid in tids]
    return Found(
        code="CR208",
        statements=tuple(statements),
        headline=(
            f"{len(tids)} threads made the first call of `{name}` at once, without a warm-up: "
            "its cache was empty for all of them."
        ),
        explains=frozenset().union(*(seqs_of(call) for call in later)),
        threads=words.refs(timeline, tids),
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
