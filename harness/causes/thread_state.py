"""What CR101 to CR104 have in common: the warm-up ran under other thread state than the threads."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.causes import versions, words
from harness.causes.base import Found, Outcome
from harness.events.values import Context
from harness.phrases import quoted
from harness.statements import SharedState, Stack, Statement
from harness.timeline.contexts import difference
from harness.timeline.judging import Judgement
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

Wording = Callable[[Context | None, Context | None], str]


@dataclass(frozen=True)
class State:
    """One kind of thread state.

    Attributes:
        code: the cause's code.
        guard: what is compared.
        wording: from the contexts of the entry and of the call to ``it was warmed with ...``.
        guard_name: the guard as torch names it.
    """

    code: str
    guard: Guard
    wording: Wording
    guard_name: str


def find_state(timeline: Timeline, state: State) -> Outcome:
    """The finding that threads missed every entry of the warm-up over ``state``, if they did.

    A thread counts if every entry that it met was made by other threads: a thread that calls in two
    contexts by turns compiles twice, which is no race. Its later misses over the same state are
    explained too.
    """
    hits = [j for j in timeline.judgements().values() if state.guard in j.guards]
    guilty = {(j.call.code.id, j.call.tid) for j in hits if not j.own}
    hits = [j for j in hits if (j.call.code.id, j.call.tid) in guilty]
    if not hits:
        return Outcome()
    hits.sort(key=lambda j: j.call.t)
    tids = list(dict.fromkeys(j.call.tid for j in hits))
    statements = (
        _what(timeline, state, hits),
        *_evidence(timeline, state, hits),
        *_crash(timeline, hits),
    )
    first = hits[0]
    found = Found(
        code=state.code,
        statements=statements,
        headline=_headline(timeline, state, hits, tids),
        explains=frozenset().union(*(j.seqs for j in hits)),
        threads=words.refs(timeline, tids),
        stacks=_stacks(timeline, first),
        shared_state=SharedState(
            name=f"the cache entries of `{first.call.code.name}`",
            writer=f"`{timeline.name(first.entry.tid)}`, in the warm-up",
            reader=f"{words.names(timeline, tids)}, finding none that fits",
        ),
    )
    return Outcome(found=[found])


def _headline(
    timeline: Timeline, state: State, hits: Sequence[Judgement], tids: Sequence[int]
) -> str:
    histories = {id(j.history): j.history for j in hits}.values()
    compiled = any(j.call.compile is not None for j in hits)
    verb = "recompiled" if compiled else "missed the cache of"
    names = words.codes(history.code for history in histories)
    first = hits[0]
    return (
        f"{words.subject(timeline, tids, histories)} {verb} {names} after warm-up: "
        f"it was {state.wording(first.entry.context, first.call.context)} "
        f"(guard {state.guard_name})."
    )


def _what(timeline: Timeline, state: State, hits: Sequence[Judgement]) -> Statement:
    first = hits[0]
    detail = difference(state.guard, first.entry.context, first.call.context)
    where = f" ({detail})" if detail else ""
    compiles = sum(j.call.times for j in hits if j.call.compile is not None)
    tids = [j.call.tid for j in hits]
    text = (
        f"`{first.call.code.name}` was compiled by `{timeline.name(first.entry.tid)}` before any "
        f"other thread called it, and no entry fitted the calls of {words.object_(timeline, tids)}"
        f"{where}; that led to {words.count(compiles, 'compile')}."
    )
    evidence = words.seqs(first.entry.seqs, *(j.seqs for j in hits))
    certain = any(state.guard in j.observed for j in hits)
    until = max(first.seqs)  # an earlier call of another thread would have been recorded by then
    return Statement(text, words.unseen(timeline, until, sure=certain), evidence)


def _evidence(timeline: Timeline, state: State, hits: Sequence[Judgement]) -> list[Statement]:
    found: list[Statement] = []
    by_thread: dict[int, list[Judgement]] = defaultdict(list)
    for hit in hits:
        by_thread[hit.call.tid].append(hit)
    for tid, own in by_thread.items():
        named = next((j for j in own if state.guard in j.observed and j.reason), None)
        name = timeline.name(tid)
        if named is not None and named.reason is not None:
            text = f"In `{name}` torch names the guard: {quoted(named.reason.text)}."
            found.append(Statement(text, "observed", words.seqs(named.seqs)))
            continue
        first = own[0]
        detail = difference(state.guard, first.entry.context, first.call.context)
        why = (
            f"its context differs from that of every entry of the warm-up: {detail}"
            if detail
            else "it repeated the compile of a thread of which this is known"
        )
        text = f"`{name}` missed for the same reason, since {why}."
        found.append(Statement(text, "inferred", words.seqs(first.seqs)))
    return found


def _crash(timeline: Timeline, hits: Sequence[Judgement]) -> list[Statement]:
    """Whether these compiles can make another thread's cached call raise; nothing if one did."""
    if timeline.flagged or timeline.from_text or not any(j.call.compile for j in hits):
        return []
    name = timeline.header.data.torch if timeline.header else ""
    evidence = (timeline.header.seq,) if timeline.header else ()
    return [Statement(versions.fx_flag(timeline.torch, name), "inferred", evidence)]


def _stacks(timeline: Timeline, first: Judgement) -> tuple[Stack, ...]:
    entry, call = first.entry, first.call
    frames = call.where or (call.compile.where if call.compile else ())
    return (
        words.stack(timeline, entry.tid, "compiled it in the warm-up", entry.where, entry.seqs[0]),
        words.stack(timeline, call.tid, "missed the cache", frames, min(first.seqs)),
    )
