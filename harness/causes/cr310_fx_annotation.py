"""CR310: ``KeyError: 'custom'`` while a block mask was built and another thread compiled."""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.events.values import ErrorLink
from harness.statements import Remedy, SharedState, Stack, Statement
from harness.timeline.model import BlockMask, Compile, ErrorSeen
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR310",
    title="fx-annotation-race",
    what=(
        "A thread dies of `KeyError: 'custom'` in `torch/fx/traceback.py`, `annotate`, while it "
        "builds a block mask for flex attention."
    ),
    why=(
        "Since torch 2.13 building a block mask annotates `torch.fx.traceback.current_meta`, one "
        "dict for the whole process. A thread that compiles swaps that dict or removes the key in "
        "between, and the annotation's exit then finds no `custom` to remove."
    ),
    evidence=(
        "That error, raised in `annotate`, in a thread, while another thread was inside a dynamo "
        "compile. Where only another block mask was being built it is inferred."
    ),
    remedy=Remedy(
        text=(
            "Build block masks before the threads start, or under a lock that also covers "
            "whatever may compile; and warm up so that nothing compiles in the threads."
        ),
        snippet=(
            "compiling = threading.RLock()\n"
            "with compiling:                        # also around each thread's first calls\n"
            "    mask = create_block_mask(mask_mod, B, None, Q, KV, device=device)"
        ),
        seen_to_work="one lock around all calls: torch 2.13.0 and 2.15.0 on CPU",
    ),
    versions="2.13 and newer (up to 2.12 a block mask annotates nothing)",
    upstream=("pytorch/pytorch#184917",),
    needs=("compiles", "threads", "block_mask"),
    may_follow=("CR1", "CR2", "CR303"),
)

_NEAR_NS = 1_000_000_000
_Begun = tuple[int, ...]
"""When a block mask was begun, and by which thread."""


@dataclass(frozen=True)
class _Case:
    """One failed annotation; ``seqs`` are the events that show it."""

    tid: int
    t: int
    seqs: tuple[int, ...]
    errors: tuple[ErrorSeen, ...]
    compiling: tuple[int, ...]
    masking: tuple[int, ...]


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Annotations that failed while another thread compiled."""
    cases = [case for case in _cases(timeline) if case.compiling or case.masking]
    return Outcome(found=[_finding(timeline, cases)] if cases else [])


def is_annotation_error(link: ErrorLink) -> bool:
    """Whether an exception is the failed annotation."""
    return (
        link.type == "KeyError"
        and link.message == "'custom'"
        and bool(link.frames)
        and link.frames[-1].function == "annotate"
        and link.frames[-1].file.replace("\\", "/").endswith("torch/fx/traceback.py")
    )


def _cases(timeline: Timeline) -> list[_Case]:
    masks = [mask for mask in timeline.block_masks if mask.error.startswith("KeyError: 'custom'")]
    errors = [e for e in timeline.errors if any(is_annotation_error(link) for link in e.chain)]
    of_thread: dict[int, list[ErrorSeen]] = defaultdict(list)
    for error in errors:
        of_thread[error.tid].append(error)
    begun = sorted((mask.t0, mask.tid) for mask in timeline.block_masks)
    cases = [
        _case(timeline, mask, [e for e in of_thread[mask.tid] if e.t >= mask.t0], begun)
        for mask in masks
    ]
    shown = {error.seq for case in cases for error in case.errors}
    # An error raised again by another thread is no case of its own.
    ids = {number for case in cases for e in case.errors for number in e.ids}
    # So it is where the program caught it first and main raises it in a group: the block mask's own
    # event has told of it, under no number of an exception.
    untold = sum(not case.errors for case in cases)
    for error in errors:
        if error.seq in shown or error.ids & ids:
            continue
        if untold and not is_annotation_error(error.error):
            untold -= sum(map(is_annotation_error, error.chain))
            continue
        cases.append(_from_error(timeline, error, begun))
        ids |= error.ids
    return cases


def _case(
    timeline: Timeline, mask: BlockMask, errors: Sequence[ErrorSeen], begun: Sequence[_Begun]
) -> _Case:
    compiling = set(mask.compiling)
    compiling |= {c.on for c in timeline.compiling_at(mask.t0, other_than=mask.tid)}
    return _Case(
        tid=mask.tid,
        t=mask.t0,
        seqs=mask.seqs,
        errors=tuple(errors[:1]),
        compiling=tuple(sorted(compiling)),
        masking=_masking(begun, mask.tid, mask.t0),
    )


def _from_error(timeline: Timeline, error: ErrorSeen, begun: Sequence[_Begun]) -> _Case:
    # The error was recorded when it ended the thread; it was raised after the thread's last event.
    compiles = [
        c
        for c in timeline.compiling_at(error.t, other_than=error.tid, within_ns=_NEAR_NS - 1)
        if c.covers(error.t) or not c.code.internal
    ]
    return _Case(
        tid=error.tid,
        t=error.t,
        seqs=(error.seq,),
        errors=(error,),
        compiling=tuple(sorted({c.on for c in compiles})),
        masking=_masking(begun, error.tid, error.t),
    )


def _masking(begun: Sequence[_Begun], tid: int, t: int) -> tuple[int, ...]:
    """Other threads that began a block mask within a second of time ``t``."""
    low = bisect.bisect_left(begun, (t - _NEAR_NS + 1,))
    high = bisect.bisect_left(begun, (t + _NEAR_NS,))
    return tuple(sorted({other for _, other in begun[low:high] if other != tid}))


def _compiles_of(timeline: Timeline, case: _Case) -> list[Compile]:
    near = timeline.compiling_at(case.t, other_than=case.tid, within_ns=_NEAR_NS - 1)
    own = [c for c in near if c.on in case.compiling]
    return [c for c in own if c.covers(case.t)] or own


def _finding(timeline: Timeline, cases: Sequence[_Case]) -> Found:
    tids = list(dict.fromkeys(case.tid for case in cases))
    statements: list[Statement] = []
    because: set[int] = set()
    explains: set[int] = set()
    stacks: list[Stack] = []
    for case in cases:
        compiles = _compiles_of(timeline, case)
        because.update(seq for c in compiles for seq in c.seqs)
        explains.update((*case.seqs, *(error.seq for error in case.errors)))
        statements.append(_statement(timeline, case, compiles))
        if not stacks:
            stacks = [_error_stack(timeline, case)]
            stacks += [
                words.stack(timeline, c.tid, "was compiling", c.where, c.seqs[0])
                for c in compiles[:1]
            ]
    # The same error raised again elsewhere, by the main thread for one, is accounted for too.
    explains.update(
        e.seq for e in timeline.errors if any(is_annotation_error(link) for link in e.chain)
    )
    others = dict.fromkeys(tid for case in cases for tid in case.compiling or case.masking)
    doing = "compiled" if any(case.compiling for case in cases) else "built another"
    return Found(
        code="CR310",
        statements=tuple(statements),
        headline=(
            f"{words.subject(timeline, tids, [])} failed with `KeyError: 'custom'` while building "
            f"a block mask, because {words.names(timeline, others)} {doing} meanwhile: FX "
            "annotations are one dict for the process (torch 2.13 and newer)."
        ),
        explains=frozenset(explains),
        because=frozenset(because),
        threads=words.refs(timeline, [*tids, *others]),
        stacks=tuple(stacks),
        shared_state=SharedState(
            name="torch.fx.traceback.current_meta",
            writer=f"{words.names(timeline, others)}, tracing a compile",
            reader=f"{words.names(timeline, tids)}, annotating a block mask",
        ),
    )


def _statement(timeline: Timeline, case: _Case, compiles: Sequence[Compile]) -> Statement:
    name = timeline.name(case.tid)
    ended = " and ended with it" if case.errors else ""
    text = f"`{name}` got `KeyError: 'custom'` in `annotate` of `torch/fx/traceback.py`{ended}"
    evidence = words.seqs(case.seqs, (e.seq for e in case.errors), *(c.seqs for c in compiles))
    if case.compiling:
        what = words.codes(compile_.code for compile_ in compiles)
        doing = f"compiling {what}" if what else "inside a dynamo compile"
        text += f", while {words.names(timeline, case.compiling)} was {doing}."
        return Statement(text, "observed", evidence)
    text += (
        f"; no compile was under way, but {words.names(timeline, case.masking)} built a block mask "
        "within the same second, which annotates the same dict."
    )
    return Statement(text, "inferred", evidence)


def _error_stack(timeline: Timeline, case: _Case) -> Stack:
    frames = []
    for error in case.errors:
        link = next((link for link in error.chain if is_annotation_error(link)), error.error)
        frames = list(reversed(link.frames))
    if not frames:
        masks = [mask for mask in timeline.block_masks if mask.seqs == case.seqs]
        frames = list(masks[0].where) if masks else []
    return words.stack(timeline, case.tid, "annotated a block mask", frames, case.seqs[0])
