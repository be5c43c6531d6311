"""CR405: torch's warning about dense attention was lost because another thread compiled."""

from collections.abc import Iterable, Sequence

from harness.causes import versions, words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile, DenseCall
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR405",
    title="fallback-warning-swallowed",
    what=(
        "`flex_attention` ran dense and torch never warned of it: nothing in the program's output "
        "says why it needs so much memory."
    ),
    why=(
        "Torch gives that warning once per process, and not while `torch.compiler.is_compiling()`, "
        "which since torch 2.13 is true in every thread while any thread compiles. A first dense "
        "call at such a moment gives none, and is remembered as if it had "
        "(`_warn_once` in `torch/nn/attention/flex_attention.py`)."
    ),
    evidence=(
        "The process's first uncompiled `flex_attention` call began while another thread was "
        "inside a dynamo compile, on torch 2.13 or newer."
    ),
    remedy=Remedy(
        text=(
            "Remove the dense calls (see CR401). To get the warning, make the first calls of each "
            "thread before any other thread compiles, or under one lock with what compiles."
        ),
        snippet=(
            "compiling = threading.RLock()\n"
            "with compiling:                        # around each thread's first calls\n"
            "    out = attention(q, k, v, block_mask=mask)"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="2.13 and newer (up to 2.12 a compile in another thread hides nothing)",
    needs=("attention", "compiles"),
    may_follow=("CR401",),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """A process's first dense call while another thread compiled."""
    if timeline.torch < versions.IS_COMPILING_HELD:
        return Outcome()
    calls = [(t, call) for call in _firsts(timeline.dense) if (t := _began(timeline, call))]
    if not calls:
        return Outcome()
    t, first = min(calls, key=lambda pair: pair[0])
    compiles = timeline.compiling_at(t, other_than=first.tid)
    return Outcome(found=[_finding(timeline, first, compiles)] if compiles else [])


def _firsts(calls: Iterable[DenseCall]) -> list[DenseCall]:
    """Each thread's first dense call."""
    found: dict[int, DenseCall] = {}
    for call in calls:
        found.setdefault(call.tid, call)
    return list(found.values())


def _began(timeline: Timeline, call: DenseCall) -> int | None:
    """When the first uncompiled `flex_attention` call of a thread began, just after its warning.

    It then calls a function that it compiles for its own use, and may wait long for the compile
    lock, so that the dense kernel runs much later. None if it was called in another way, which
    gives no warning.
    """
    times = [
        history.sightings[call.tid].t0
        for history in timeline.flex_wrappers()
        if call.tid in history.sightings
    ]
    return min((t for t in times if t <= call.t), default=None)


def _finding(timeline: Timeline, first: DenseCall, compiles: Sequence[Compile]) -> Found:
    others = list(dict.fromkeys(c.on for c in compiles))
    names = words.names(timeline, others)
    text = (
        f"`{timeline.name(first.tid)}` made the process's first uncompiled `flex_attention` call "
        f"while {names} compiled {words.codes(c.code for c in compiles)}."
    )
    evidence = words.seqs((first.seq,), *(c.seqs for c in compiles))
    lost = Statement(
        "So torch did not warn of it, and will not warn in this process again.",
        "inferred",
        words.seqs((first.seq,)),
    )
    compile_ = compiles[0]
    return Found(
        code="CR405",
        statements=(Statement(text, words.unseen(timeline, first.seq), evidence), lost),
        headline=(
            f"Torch's warning about dense attention was swallowed: the first dense call, of "
            f"`{timeline.name(first.tid)}`, came while {names} compiled (torch 2.13 and newer)."
        ),
        because=frozenset({first.seq}),
        threads=words.refs(timeline, [first.tid, *others]),
        stacks=(
            words.stack(timeline, first.tid, "ran dense", first.where, first.seq),
            words.stack(timeline, compile_.on, "was compiling", compile_.where, compile_.seqs[0]),
        ),
        shared_state=SharedState(
            name="torch.compiler.is_compiling(), and the set of warnings given",
            writer=f"{names}, compiling",
            reader=f"`{timeline.name(first.tid)}`, about to warn",
        ),
    )
