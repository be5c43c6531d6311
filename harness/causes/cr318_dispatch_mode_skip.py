"""CR318: a thread called compiled code under a dispatch mode, so dynamo gave it up for all."""

from collections.abc import Sequence

from harness.causes import versions, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.counting import eager_total
from harness.statements import Note, Remedy, SharedState, Statement
from harness.timeline.eager import MODE_ROUTES
from harness.timeline.model import EagerCall
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR318",
    title="dispatch-mode-skip",
    what=(
        "One thread called a compiled function under a `TorchDispatchMode`, such as "
        "`FlopCounterMode`. From then on every thread's calls of it run eager, without the mode, "
        "without a word and for good."
    ),
    why=(
        "Dynamo does not compile under a dispatch mode: such a call misses every entry and is left "
        "to Python. Up to torch 2.13 it then marks the code object to be skipped, and that mark is "
        "no thread's own (`CatchErrorsWrapper` in `torch/_dynamo/convert_frame.py`)."
    ),
    evidence=(
        "A call that ran eager with no mode on, of a code object that another thread had called "
        "under a mode before, that call having run eager as well."
    ),
    remedy=Remedy(
        text=(
            "Call the plain function under the mode, not the compiled one; or upgrade to torch "
            "2.14. `torch._dynamo.reset()` lifts the mark, while no thread calls compiled code."
        ),
        snippet=(
            "compiled = torch.compile(step)\n"
            "with FlopCounterMode() as counter:\n"
            "    step(batch)                        # the plain function\n"
            "compiled(batch)"
        ),
        seen_to_work="torch 2.11.0 and 2.13.0 on CPU; 2.14.1 needs no remedy",
    ),
    versions="up to 2.13 (seen on 2.11.0 and 2.13.0, not on 2.14.1)",
    needs=("wrapper", "guards", "eager"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Calls that ran eager for another thread's mode; a note on a thread's own."""
    outcome = Outcome()
    modes = [call for call in timeline.eager if call.route in MODE_ROUTES]
    for code in dict.fromkeys(call.code.id for call in modes):
        calls = [call for call in modes if call.code.id == code]
        others = [c for c in calls if c.route == "skipped_for_mode" and _is_others(timeline, c)]
        if others:
            outcome.found.append(_finding(timeline, calls, others))
        else:
            outcome.notes.append(_note(timeline, calls))
    outcome.notes += _unexplained(timeline)
    return outcome


def _unexplained(timeline: Timeline) -> list[Note]:
    """A note on eager calls that a mode may account for: what it is called under is marked too.

    Functions that a compiled function calls under a mode are marked with it, and of them no call
    is seen, so this is no more than likely.
    """
    if timeline.torch >= versions.MODE_MARKS_NO_CODE:
        return []
    modes = [c for c in timeline.eager if c.route == "dispatch_mode"]
    calls = [
        c
        for c in timeline.eager
        if c.route == "unknown" and any(m.tid != c.tid and m.t < c.t for m in modes)
    ]
    if not calls:
        return []
    text = (
        f"At least {words.count(eager_total(calls), 'call')} of "
        f"{words.codes(c.code for c in calls)} in "
        f"{words.object_(timeline, (c.tid for c in calls))} ran eager for no reason that was seen. "
        f"{words.begin(words.object_(timeline, (m.tid for m in modes)))} had called compiled code "
        f"under {words.listing(f'`{m.detail}`' for m in modes)} before: up to torch 2.13 dynamo "
        "gives up for good what is called there, inner functions too."
    )
    seqs = words.seqs((c.seq for c in calls), (m.seq for m in modes))
    return [Note(text=text, code="CR318", pid=timeline.pid, evidence=seqs)]


def _is_others(timeline: Timeline, call: EagerCall) -> bool:
    served = [thread.tid for thread in timeline.served_by(call.tid)]
    return call.by is not None and call.by != call.tid and call.by not in served


def _finding(timeline: Timeline, calls: Sequence[EagerCall], others: Sequence[EagerCall]) -> Found:
    name, modes = others[0].code.name, f"`{others[0].detail}`"
    setters = list(dict.fromkeys(c.by for c in others if c.by is not None))
    tids = list(dict.fromkeys(c.tid for c in others))
    own = [c for c in calls if c.route == "dispatch_mode" and c.tid in setters]
    statements = [
        Statement(
            f"`{timeline.name(tid)}` called `{name}` under {modes}: at least "
            f"{words.count(eager_total(c for c in own if c.tid == tid), 'call')} ran eager there.",
            "observed",
            words.seqs(c.seq for c in own if c.tid == tid),
        )
        for tid in dict.fromkeys(c.tid for c in own)
    ]
    statements += [
        Statement(
            f"In `{timeline.name(tid)}`, with no such mode, at least "
            f"{words.count(eager_total(c for c in others if c.tid == tid), 'call')} of `{name}` "
            "ran eager afterwards.",
            "observed",
            words.seqs(c.seq for c in others if c.tid == tid),
        )
        for tid in tids
    ]
    statements.append(
        Statement(
            f"Dynamo has marked `{name}` to be skipped, in every thread.",
            "inferred",
            words.seqs(c.seq for c in (*own, *others)),
        )
    )
    stacks = [words.stack(timeline, c.tid, "ran eager", c.where, c.seq) for c in others[:1]]
    stacks += [words.stack(timeline, c.tid, "called it under it", c.where, c.seq) for c in own[:1]]
    return Found(
        code="CR318",
        statements=tuple(statements),
        headline=(
            f"Calls of `{name}` in {words.object_(timeline, tids)} run eager for good because "
            f"{words.names(timeline, setters)} called it under {modes}: up to torch 2.13 dynamo "
            "then gives the function up for all threads (fixed in 2.14)."
        ),
        explains=frozenset(c.seq for c in calls),
        threads=words.refs(timeline, [*tids, *setters]),
        stacks=tuple(stacks),
        shared_state=SharedState(
            name=f"dynamo's mark on the code object of `{name}`",
            writer=f"{words.names(timeline, setters)}, calling it under {modes}",
            reader=f"{words.names(timeline, tids)}, calling it",
        ),
    )


def _note(timeline: Timeline, calls: Sequence[EagerCall]) -> Note:
    modes = words.listing(f"`{c.detail}`" for c in calls)
    text = (
        f"At least {words.count(eager_total(calls), 'call')} of `{calls[0].code.name}` in "
        f"{words.object_(timeline, (c.tid for c in calls))} ran eager under {modes}"
    )
    if any(c.route == "skipped_for_mode" for c in calls):
        text += " or afterwards, since up to torch 2.13 dynamo then gives a function up for good"
    return Note(
        text=f"{text}.", code="CR318", pid=timeline.pid, evidence=words.seqs(c.seq for c in calls)
    )
