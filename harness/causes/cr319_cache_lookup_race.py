"""CR319: a lookup missed an entry that fits, since another thread's hit moved it meanwhile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Note, Remedy, SharedState, Statement
from harness.timeline.history import CodeHistory
from harness.timeline.judging import seqs_of
from harness.timeline.model import Compile, Uncovered
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR319",
    title="cache-lookup-race",
    what=(
        "Threads that call a function warmed with two or more entries recompile it all the same, "
        "though nothing about their calls is new: they make copies of entries that are there, "
        "until the recompile limit is used up and calls run eager."
    ),
    why=(
        "Dynamo walks a code object's list of entries without a lock, and a hit moves its entry to "
        "the front of that list (`lookup` and `move_to_front` in "
        "`torch/csrc/dynamo/extra_state.cpp`). Each entry's guards are checked under that entry's "
        "own mutex, for which the GIL is given up (`RootGuardManager` in "
        "`torch/csrc/dynamo/guards.cpp`). A thread that stands on one entry while another's hit "
        "moves the entry behind it in front of it comes to the end of the list without having "
        "seen it, and compiles. Before it does, nothing looks again."
    ),
    evidence=(
        "A compile of which torch says that the call passed every guard of an entry "
        "(`Unexpected recompilation`; on 2.11 `BACKEND_MATCH failure` of an entry of the same "
        "backend) that was finished before the call began, while there were two entries or more "
        "and another thread called the code. In a compile stampede (CR303) "
        "that entry is finished after the call has missed. That the list was reordered in between "
        "is inferred: hits leave no trace."
    ),
    remedy=Remedy(
        text=(
            "Let every code object that several threads call have one entry: `dynamic=True` or "
            "`mark_dynamic` for shapes that vary, or a function of its own, by its own `def`, for "
            "each kind of call (a closure or a second `torch.compile` of one function shares its "
            "list). Or keep the list in one order, before anything is compiled: "
            "`torch._C._dynamo.eval_frame._set_lru_cache(False)`, which is private."
        ),
        snippet=(
            "compiled = torch.compile(step, dynamic=True)       # one entry for all lengths\n"
            "for length in lengths:\n"
            "    compiled(torch.randn(length))                  # still one"
        ),
        seen_to_work=(
            "`dynamic=True` and `_set_lru_cache(False)`: torch 2.11.0, 2.13.0 and 2.14.1; a "
            "function for each kind of call: 2.13.0 on CPU"
        ),
    ),
    versions=(
        "seen on 2.11.0, 2.13.0 and 2.14.1. On 2.11 torch's reason is BACKEND_MATCH, which another "
        "backend gives as well; where the backends were not recorded it is a note there"
    ),
    upstream=("pytorch/pytorch#195355", "pytorch/pytorch#193697"),
    needs=("compiles", "guards", "wrapper"),
)

_TOLD_FROM = (2, 12)
"""Torch 2.11 names the backend where the guards pass, whether or not it is another one."""


@dataclass(frozen=True)
class _Missed:
    """A call that compiled what ``entry`` had been for since before the call began."""

    history: CodeHistory
    call: Uncovered
    compile: Compile
    entry: Compile
    others: tuple[int, ...]

    @property
    def same_guards(self) -> bool:
        """Whether the new entry's guards are known to be the old one's."""
        new, old = self.compile.entry, self.entry.entry
        return bool(new and old and new.digest and new.digest == old.digest)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Calls that missed an entry which was there and fits."""
    missed = list(_missed(timeline, Guard.UNEXPECTED))
    outcome = Outcome(found=[_finding(timeline, missed)] if missed else [])
    if (0, 0) < timeline.torch < _TOLD_FROM:
        doubtful = list(_missed(timeline, Guard.BACKEND))
        outcome.notes += [_note(timeline, doubtful)] if doubtful else []
    return outcome


def _missed(timeline: Timeline, guard: Guard) -> Iterator[_Missed]:
    for history in timeline.program_codes():
        for call in history.uncovered:
            compile_ = call.compile
            if compile_ is None or (compile_.entries is not None and compile_.entries < 2):
                continue
            began = _began_by(timeline, history, call)
            entry = _entry_that_fits(timeline, history, call, guard, began)
            others = _meanwhile(timeline, history, call, began) if entry else ()
            if entry is not None and others:
                yield _Missed(history, call, compile_, entry, others)


def _entry_that_fits(
    timeline: Timeline, history: CodeHistory, call: Uncovered, guard: Guard, began: int
) -> Compile | None:
    """The first entry that torch says the call fits, if it was there when the call began."""
    reasons = call.compile.reasons if call.compile else ()
    passed = (r for r in reasons if guard in r.guards and not r.other_backend)
    fitting = {reason.entry for reason in passed} - {None}
    resets = [reset.t1 or reset.t0 for reset in timeline.resets if reset.t0 <= call.t]
    since = max(resets, default=0)
    for entry in history.entries_before(began):
        if entry.compile_id in fitting and entry.t1 is not None and entry.t1 >= since:
            return entry
    return None


def _began_by(timeline: Timeline, history: CodeHistory, call: Uncovered) -> int:
    """The latest time before which a call surely did not begin.

    A miss is seen where the lookup is over. The last that is seen of its thread before that,
    outside of a call of this code or at the beginning of one, came no later than the beginning.
    """
    thread = timeline.threads.get(call.tid)
    sighting = history.sightings.get(call.tid)
    before = [
        *((thread.t0, thread.first_call) if thread else ()),
        *((sighting.t0,) if sighting else ()),
        *(c.t1 for c in history.compiles if c.tid == call.tid and c.t1 is not None),
    ]
    return max((seen for seen in before if seen is not None and seen < call.t), default=0)


def _meanwhile(
    timeline: Timeline, history: CodeHistory, call: Uncovered, began: int
) -> tuple[int, ...]:
    """Other threads that called the code while the call looked for its entry, or may have.

    Of a hit no end is seen, and of most no beginning: a thread that had called the code and had not
    ended may be in one. The first compiler, which may wait for the others, is none of those.
    """
    overlapping = history.overlaps(call.tid)
    if overlapping:
        return tuple(overlapping)
    return tuple(
        tid
        for tid, seen in history.sightings.items()
        if tid not in {call.tid, history.first_compiler, *history.autograd}
        and seen.t0 <= call.t
        and ((thread := timeline.threads.get(tid)) is None or thread.t1 >= began)
    )


def _finding(timeline: Timeline, missed: Sequence[_Missed]) -> Found:
    statements = []
    for history in {id(each.history): each.history for each in missed}.values():
        statements += _statements(timeline, [each for each in missed if each.history is history])
    first = min(missed, key=lambda each: each.compile.t0)
    name = first.history.code.name
    seqs = frozenset[int]().union(*(seqs_of(each.call) for each in missed))
    return Found(
        code="CR319",
        statements=tuple(statements),
        headline=_headline(timeline, missed),
        explains=seqs,
        threads=words.refs(timeline, [*(m.call.tid for m in missed), *first.others]),
        stacks=(
            words.stack(
                timeline,
                first.call.tid,
                "missed the entry and compiled it again",
                first.call.where or first.compile.where,
                min(seqs_of(first.call)),
            ),
            words.stack(
                timeline, first.entry.tid, "had made it", first.entry.where, first.entry.seqs[0]
            ),
        ),
        shared_state=SharedState(
            name=f"the order of the entries of `{name}`",
            writer=f"{words.object_(timeline, first.others)}, moving the entry that was hit to the "
            "front",
            reader=f"`{timeline.name(first.call.tid)}`, walking the list",
        ),
    )


def _headline(timeline: Timeline, missed: Sequence[_Missed]) -> str:
    histories = list({id(each.history): each.history for each in missed}.values())
    who = words.subject(timeline, [each.call.tid for each in missed], histories)
    codes = words.codes(history.code for history in histories)
    number = sum(each.call.times for each in missed)
    return (
        f"{who} recompiled {codes} {words.times(number)} for calls that an entry fits which was "
        "there before they began: the lookup missed it, while another thread's calls reordered "
        "the entries."
    )


def _statements(timeline: Timeline, missed: Sequence[_Missed]) -> list[Statement]:
    name = missed[0].history.code.name
    found = []
    for tid in dict.fromkeys(each.call.tid for each in missed):
        own = [each for each in missed if each.call.tid == tid]
        entries = words.listing(f"[{n}]" for n in _numbers(own))
        text = (
            f"`{timeline.name(tid)}` compiled `{name}` "
            f"{words.times(sum(each.call.times for each in own))}, although "
            f"{entries}, made before its call began, "
            "fits: torch found that the call passed every guard when it was checked again."
        )
        seqs = words.seqs(*((*each.compile.seqs, *each.entry.seqs[-1:]) for each in own))
        found.append(Statement(text, "observed", seqs))
    copies = [each for each in missed if each.same_guards]
    if copies:
        text = f"{words.count(len(copies), 'new entry', 'new entries')} of `{name}` "
        text += f"{'has' if len(copies) == 1 else 'have'} the guards of one that was there."
        seqs = words.seqs(*((each.compile.seqs[-1], each.entry.seqs[-1]) for each in copies))
        found.append(Statement(text, "observed", seqs))
    others = words.object_(timeline, (tid for each in missed for tid in each.others))
    text = (
        f"Calls of {others} moved the entry in front of where the lookup stood: they called "
        f"`{name}` at the time, and it had more than one entry. Something guarded on that "
        "changed and changed back at that moment would look the same."
    )
    seqs = words.seqs(*(each.call.seqs for each in missed))
    found.append(Statement(text, "inferred", seqs))
    return found


def _numbers(missed: Sequence[_Missed]) -> list[str]:
    return list(dict.fromkeys(each.entry.compile_id or "" for each in missed))


def _note(timeline: Timeline, missed: Sequence[_Missed]) -> Note:
    histories = list({id(each.history): each.history for each in missed}.values())
    return Note(
        text=(
            f"{words.subject(timeline, [each.call.tid for each in missed], histories)} compiled "
            f"{words.codes(history.code for history in histories)} again, although the call "
            "passed all guards of an entry that was there before it began. Either it was made "
            "with another backend, or the lookup missed the entry while another thread's hit "
            "moved it (CR319): torch 2.11 says `BACKEND_MATCH failure` of both."
        ),
        code="CR319",
        pid=timeline.pid,
        evidence=words.seqs(*(each.compile.seqs for each in missed)),
    )
