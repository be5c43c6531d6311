"""What CR201 to CR206 and CR209 have in common: the warm-up did not cover an input of the call.

A recompile for an input that the warm-up had not seen is no fault by itself: every program meets
new shapes. It is a finding when another thread was calling the same code object meanwhile.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Found, Outcome
from harness.phrases import quoted
from harness.statements import Certainty, Note, Statement
from harness.timeline.cold import cold_started
from harness.timeline.contexts import shapes
from harness.timeline.history import CodeHistory
from harness.timeline.judging import Judgement
from harness.timeline.model import Uncovered
from harness.timeline.reasons import Guard, Reason
from harness.timeline.timeline import Timeline


@dataclass(frozen=True)
class Miss:
    """One call that the input kept from being covered; ``secondary``: by a later entry only."""

    judgement: Judgement
    text: str
    observed: bool
    secondary: bool


@dataclass(frozen=True)
class Input:
    """One kind of uncovered input.

    Attributes:
        code: the cause's code.
        guards: the kinds of guard that fail, the one that counts first.
        because: the headline's second half, from the guard's text.
        unknown: what is not recorded, as a statement; empty if nothing is amiss.
        beside_cold_start: it is told where several threads cold-started the code too.
    """

    code: str
    guards: tuple[Guard, ...]
    because: Callable[[str], str]
    unknown: str = ""
    beside_cold_start: bool = True


def find_input(timeline: Timeline, kind: Input) -> Outcome:
    """The finding, or the note, that calls were not covered because of ``kind``."""
    after = [j for j in timeline.judgements().values() if not _in_warmup(j)]
    if not kind.beside_cold_start:
        after = [j for j in after if not cold_started(j.history)]
    misses = [miss for j in after if (miss := _miss(j, kind.guards))]
    if not misses:
        return Outcome()
    outcome = Outcome()
    raced = [miss for miss in misses if _raced(miss)]
    calm = [miss for miss in misses if not _raced(miss)]
    if calm:
        outcome.notes.append(_note(timeline, kind, calm))
    if raced:
        outcome.found.append(_finding(timeline, kind, raced))
    return outcome


def _in_warmup(judgement: Judgement) -> bool:
    """Whether nobody else had called the code object yet when this call compiled."""
    return judgement.history.made_in_warmup(judgement.call.compile)


def guard(text: str) -> str:
    """Torch's words for the guard, as the end of a headline's half; empty if there are none."""
    return f" (guard {quoted(text)})" if text else ""


def _miss(judgement: Judgement, guards: Sequence[Guard]) -> Miss | None:
    for kind in guards:
        if kind in judgement.guards:
            text = reason_line(judgement.reason) if judgement.reason else ""
            return Miss(judgement, text, kind in judgement.observed, secondary=False)
    later = next((judgement.later[guard] for guard in guards if guard in judgement.later), None)
    if later is None:
        return None
    return Miss(judgement, reason_line(later), observed=True, secondary=True)


def reason_line(reason: Reason) -> str:
    """Torch's words for the guard alone: a guard on a Python value is followed by its source."""
    return re.split(r"\s{2,}#|\s*\n", reason.text.strip(), maxsplit=1)[0]


def _raced(miss: Miss) -> bool:
    """Whether another thread called the code object in the same period.

    A method's code is every instance's: an instance that the entries were not made for, such as a
    second model of the class, is warmed up by its own first call. But once a program has said that
    its warm-up is over nothing should be compiled.
    """
    history, call = miss.judgement.history, miss.judgement.call
    if history.done is not None:
        return True
    return history.meets_others(call.tid) and not _first_of_its_owner(history, call)


def _first_of_its_owner(history: CodeHistory, call: Uncovered) -> bool:
    owner = call.compile.owner if call.compile else None
    if owner is None:
        return False
    owners = {entry.owner for entry in history.entries_before(call.t)}
    return None not in owners and owner not in owners


def _finding(timeline: Timeline, kind: Input, misses: Sequence[Miss]) -> Found:
    misses = sorted(misses, key=lambda miss: (miss.secondary, miss.judgement.call.t))
    calls = [miss.judgement.call for miss in misses]
    histories = list({id(m.judgement.history): m.judgement.history for m in misses}.values())
    tids = [call.tid for call in sorted(calls, key=lambda call: call.t)]
    seqs = frozenset().union(*(miss.judgement.seqs for miss in misses))
    codes = words.codes(history.code for history in histories)
    first = misses[0].judgement
    verb = "recompiled" if any(call.compile for call in calls) else "missed the cache of"
    return Found(
        code=kind.code,
        statements=(
            *_statements(timeline, misses),
            _overlap(timeline, misses[0]),
            _warmed(timeline, first),
            *([Statement(kind.unknown, "unknown", words.seqs(seqs))] if kind.unknown else []),
        ),
        headline=(
            f"{words.subject(timeline, tids, histories)} {verb} {codes} after warm-up: "
            f"{kind.because(misses[0].text)}."
        ),
        explains=seqs,
        because=seqs,
        # A cold start is what the lack of any warm-up is called; it then comes first.
        independent=any(
            not miss.secondary and not cold_started(miss.judgement.history) for miss in misses
        ),
        threads=words.refs(timeline, tids),
        stacks=(
            words.stack(
                timeline,
                first.entry.tid,
                "compiled the nearest entry",
                first.entry.where,
                first.entry.seqs[0],
            ),
            words.stack(
                timeline,
                first.call.tid,
                "missed the cache",
                first.call.where or (first.call.compile.where if first.call.compile else ()),
                min(first.seqs),
            ),
        ),
    )


def _statements(timeline: Timeline, misses: Sequence[Miss]) -> list[Statement]:
    found = []
    by_thread: dict[int, list[Miss]] = defaultdict(list)
    for miss in misses:
        by_thread[miss.judgement.call.tid].append(miss)
    for tid, own in by_thread.items():
        shown = next((miss for miss in own if miss.text), own[0])
        name, code = timeline.name(tid), shown.judgement.call.code.name
        number = words.times(sum(miss.judgement.call.times for miss in own))
        if shown.text:
            text = f"`{name}` missed every entry of `{code}` {number}; torch names the guard: "
            text += f"{quoted(shown.text)}."
        else:
            text = f"`{name}` missed every entry of `{code}` {number}, repeating another's compile."
        certainty: Certainty = "observed" if shown.observed else "inferred"
        evidence = words.seqs(*(miss.judgement.seqs for miss in own))
        found.append(Statement(text, certainty, evidence))
    return found


def _overlap(timeline: Timeline, miss: Miss) -> Statement:
    history, call = miss.judgement.history, miss.judgement.call
    if timeline.warmup_done is not None:
        seq = timeline.warmup_done[1]
        text = "The program had said before that its warm-up was over."
        return Statement(text, "observed", words.seqs((seq,)))
    others = history.overlaps(call.tid)
    who = words.object_(timeline, others) if others else "threads that are not listed"
    text = (
        f"{words.begin(who)} called `{call.code.name}` in the same period as "
        f"`{timeline.name(call.tid)}`."
    )
    return Statement(text, "observed", words.seqs(history.sightings[t].seq for t in others))


def _warmed(timeline: Timeline, first: Judgement) -> Statement:
    warmup = first.history.warmup()
    warmed = [shapes(compile_.inputs) or "inputs not recorded" for compile_ in warmup]
    called = shapes(first.call.compile.inputs) if first.call.compile else ""
    text = f"The warm-up compiled `{first.call.code.name}` for: {words.listing(warmed)}."
    if called in warmed:
        text += f" `{timeline.name(first.call.tid)}` called it with tensors of the same shapes."
    elif called:
        text += f" `{timeline.name(first.call.tid)}` called it with: {called}."
    evidence = words.seqs(*(compile_.seqs[:1] for compile_ in warmup), first.seqs)
    return Statement(text, words.unseen(timeline, max(first.seqs)), evidence)


def _note(timeline: Timeline, kind: Input, misses: Sequence[Miss]) -> Note:
    calls = [miss.judgement.call for miss in misses]
    codes = words.codes(call.code for call in calls)
    text = next((miss.text for miss in misses if miss.text), "")
    named = f": {quoted(text)}" if text else ""
    met = any(m.judgement.history.meets_others(m.judgement.call.tid) for m in misses)
    alone = (
        "which was the first of its object, for which nothing had been compiled"
        if met
        else "while no other thread called it"
    )
    number = words.count(sum(call.times for call in calls), "call")
    return Note(
        text=(
            f"{number} of {codes} in {words.object_(timeline, (c.tid for c in calls))} met no "
            f"fitting entry ({kind.guards[0].value}), {alone}{named}."
        ),
        code=kind.code,
        pid=timeline.pid,
        evidence=words.seqs(*(miss.judgement.seqs for miss in misses)),
    )
