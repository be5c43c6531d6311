"""CR303: several threads compile one thing, one after another behind dynamo's compile lock."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Certainty, Remedy, SharedState, Statement
from harness.timeline.history import CodeHistory
from harness.timeline.judging import seqs_of
from harness.timeline.model import Compile, Uncovered
from harness.timeline.repeats import repeats
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR303",
    title="compile-stampede",
    what=(
        "Several threads compile the same code object for the same call, one after another: N "
        "threads wait N compiles long, and keep N identical cache entries."
    ),
    why=(
        "A thread looks into the cache, misses, and then waits for dynamo's one compile lock. When "
        "its turn comes it does not look again, so it compiles what the thread before it has just "
        "compiled."
    ),
    evidence=(
        "A compile whose call began before another thread's compile of the same code object had "
        "ended, and which made an entry with the same guards, or for which torch found that the "
        "call passed all guards (`Unexpected recompilation`). From equal inputs and contexts it is "
        "inferred."
    ),
    remedy=Remedy(
        text=(
            "Remove what makes the threads miss: warm up in the context of the real calls. Where "
            "that cannot be done, make each first call under one lock. A function that each thread "
            "defines for itself (a closure) has one code object and one cache for all: define and "
            "compile it once, outside."
        ),
        snippet=(
            "first = threading.Lock()\n"
            "def loop():\n"
            "    with first:                        # one thread compiles, the others then hit\n"
            "        compiled(batch()).float().sum().backward()\n"
            "    ..."
        ),
        seen_to_work="one lock around the first calls: torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards", "lock"),
    may_follow=("CR1", "CR2", "CR306", "CR319"),
)


_HOW: dict[str, tuple[str, Certainty]] = {
    "guards": ("the guards of the new entry are the same as those of the one before", "observed"),
    "reason": (
        "torch found that the call passed every guard when it was checked again",
        "observed",
    ),
    "call": (
        "it was for the same inputs in the same context, which the entry before was made for",
        "inferred",
    ),
}


@dataclass(frozen=True)
class _Repeat:
    history: CodeHistory
    call: Uncovered
    compile_: Compile
    leader: Compile
    how: str


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Compiles that repeated another thread's."""
    repeated = list(_repeats(timeline))
    return Outcome(found=[_finding(timeline, repeated)] if repeated else [])


def _repeats(timeline: Timeline) -> list[_Repeat]:
    found = []
    for history in timeline.program_codes():
        for call in history.uncovered:
            leader = call.leader
            if leader is not None and call.compile is not None:
                how = repeats(leader, call.compile) or ""
                found.append(_Repeat(history, call, call.compile, leader, how))
    return sorted(found, key=lambda repeat: repeat.compile_.t0)


def _finding(timeline: Timeline, found: Sequence[_Repeat]) -> Found:
    by_code: dict[int, list[_Repeat]] = defaultdict(list)
    for repeat in found:
        by_code[id(repeat.history)].append(repeat)
    histories = [own[0].history for own in by_code.values()]
    statements = []
    for own in by_code.values():
        statements += _statements(timeline, own[0].history, own)
    first = found[0]
    seqs = frozenset().union(*(seqs_of(repeat.call) for repeat in found))
    tids = [tid for r in found for tid in (r.leader.tid, r.call.tid)]
    return Found(
        code="CR303",
        statements=tuple(statements),
        headline=_headline(found, histories),
        explains=seqs,
        because=seqs,
        threads=words.refs(timeline, tids),
        stacks=(
            words.stack(
                timeline, first.leader.tid, "compiled it", first.leader.where, first.leader.seqs[0]
            ),
            words.stack(
                timeline,
                first.call.tid,
                "waited, and compiled it again",
                first.call.where or first.compile_.where,
                min(seqs_of(first.call)),
            ),
        ),
        shared_state=SharedState(
            name=f"the cache of `{first.history.code.name}`, behind dynamo's compile lock",
            writer=f"`{timeline.name(first.leader.tid)}`, adding an entry",
            reader=f"`{timeline.name(first.call.tid)}`, before that entry was there",
        ),
    )


def _headline(found: Sequence[_Repeat], histories: Sequence[CodeHistory]) -> str:
    leaders = {id(r.leader) for r in found} - {id(r.compile_) for r in found}
    compiles = len(leaders) + sum(r.call.times for r in found)
    codes = words.codes(history.code for history in histories)
    # One name is short enough to be repeated by a pronoun: the root's sentence has just said it.
    what = "It was" if len(histories) == 1 else f"{codes} were"
    return (
        f"{what} compiled {words.times(compiles)}, one after another behind dynamo's compile lock."
    )


def _statements(
    timeline: Timeline, history: CodeHistory, found: Sequence[_Repeat]
) -> list[Statement]:
    name = history.code.name
    statements = []
    for how, (reason, certainty) in _HOW.items():
        own = [repeat for repeat in found if repeat.how == how]
        if not own:
            continue
        text = (
            f"{words.begin(words.object_(timeline, (r.call.tid for r in own)))} compiled `{name}` "
            f"again after {words.names(timeline, (r.leader.tid for r in own))} had: {reason}."
        )
        evidence = words.seqs(*((*r.compile_.seqs, *r.leader.seqs) for r in own))
        statements.append(Statement(text, certainty, evidence))
    waits = [repeat.call.wait for repeat in found if repeat.call.wait is not None]
    if waits:
        total = sum(((wait.t1 or wait.t0) - wait.t0) / 1e9 for wait in waits)
        least = "at least " if any(repeat.call.times > 1 for repeat in found) else ""
        text = f"They waited {least}{total:.2f} s for the compile lock, all together."
        statements.append(Statement(text, "observed", words.seqs(*(wait.seqs for wait in waits))))
    return statements
