"""Why a call was not covered: which guard of which entry stood in its way.

A call is judged against the entries of the warm-up (those compiled before a second thread called
the code object) that existed when the call began, since what the warm-up lacked is the question.
Where several entries rejected it for different reasons, the nearest entry decides: if one differs
in the inputs only, the thread's state was covered and is not the cause.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from harness.timeline.contexts import differing
from harness.timeline.model import CodeHistory, Compile, Uncovered
from harness.timeline.reasons import GLOBAL_STATE, THREAD_STATE, Guard, Reason
from harness.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Judgement:
    """What kept a call from being covered.

    Attributes:
        history, call: the code object and the call.
        entry: the nearest entry of the warm-up, whose guards the others are about.
        guards: what differed between that entry and the call.
        observed: those of ``guards`` that a reason of torch's or a recorded context names.
        reason: torch's words, where they were recorded.
        own: the calling thread had made an entry itself, so that it did both.
        later: guards by which entries made after the warm-up rejected the call.
    """

    history: CodeHistory
    call: Uncovered
    entry: Compile
    guards: frozenset[Guard]
    observed: frozenset[Guard]
    reason: Reason | None
    own: bool
    later: dict[Guard, Reason]

    @property
    def seqs(self) -> frozenset[int]:
        """The events of the call and of its compile."""
        return seqs_of(self.call)


def seqs_of(call: Uncovered) -> frozenset[int]:
    """The events of an uncovered call and of the compile that it led to."""
    return frozenset((*call.seqs, *(call.compile.seqs if call.compile else ())))


_judged: WeakKeyDictionary[Timeline, dict[int, Judgement]] = WeakKeyDictionary()


def judgements(timeline: Timeline) -> Iterable[Judgement]:
    """Judge every uncovered call of the program's code that had entries to be checked against."""
    return _of(timeline).values()


def judgement_of(timeline: Timeline, call: Uncovered) -> Judgement | None:
    """The judgement of one call; None if it met no entry or nothing is known of why."""
    return _of(timeline).get(id(call))


def _of(timeline: Timeline) -> dict[int, Judgement]:
    # Most causes ask for them, and they take time in the square of a code object's compiles.
    known = _judged.get(timeline)
    if known is None:
        known = _judged[timeline] = {
            id(call): judgement
            for history in timeline.program_codes()
            for call in history.uncovered
            if (judgement := judge(history, call)) is not None
        }
    return known


def judge(history: CodeHistory, call: Uncovered) -> Judgement | None:
    """Judge one call; None if it met no entry or nothing is known of why it was rejected."""
    prior = history.entries_before(call.t)
    warm = _warm(history, prior)
    if not warm:
        return None
    rejections = [_rejection(entry, call) for entry in warm]
    known = [rejection for rejection in rejections if rejection.guards]
    if len(known) < len(rejections):
        known = _as_leader(history, call) or []
    if not known:
        return None
    nearest = min(known, key=_distance)
    return Judgement(
        history=history,
        call=call,
        entry=nearest.entry,
        guards=nearest.guards,
        observed=nearest.observed,
        reason=nearest.reason,
        own=any(entry.tid == call.tid for entry in prior),
        later=_later(warm, call),
    )


def leader_of(history: CodeHistory, call: Uncovered) -> Compile | None:
    """The compile by another thread that this call waited for and then repeated.

    It had not ended when the call began, had ended when the call's own compile began, and left an
    entry that the call would have hit (see ``repeats``).
    """
    compile_ = call.compile
    if compile_ is None:
        return None
    for earlier in reversed(history.compiles):
        ended = earlier.t1
        if ended is not None and ended <= call.t:
            break  # one lock is around all compiles, so those before it ended earlier still
        if (
            ended is not None
            and earlier.made_entry
            and earlier.tid != call.tid
            and ended <= compile_.t0
            and repeats(earlier, compile_) is not None
        ):
            return earlier
    return None


def repeats(earlier: Compile, later: Compile) -> str | None:
    """Why ``later`` is known to repeat ``earlier``; None if it is not.

    ``guards``: the two entries' guard texts are equal. ``reason``: torch's reason for the later one
    is that the call passed every guard when it was checked again. ``call``: both were made for the
    same tensors in the same context, and an entry fits the call that it was made for; their guards
    can still differ, since up to torch 2.11 the options of ``torch.compile`` are patched into a
    config that all threads share, where one compile can lose them.
    """
    digests = [entry.digest for entry in (earlier.entry, later.entry) if entry and entry.digest]
    if len(digests) == 2 and digests[0] == digests[1]:
        return "guards"
    for reason in later.reasons:
        if Guard.UNEXPECTED in reason.guards and reason.entry in {earlier.compile_id, None}:
            return "reason"
    same_context = (
        earlier.context is not None
        and later.context is not None
        and not differing(earlier.context, later.context)
    )
    return "call" if same_context and later.inputs and earlier.inputs == later.inputs else None


@dataclass(frozen=True, slots=True)
class _Rejection:
    entry: Compile
    guards: frozenset[Guard]
    observed: frozenset[Guard]
    reason: Reason | None


def _warm(history: CodeHistory, prior: list[Compile]) -> list[Compile]:
    warmup = history.warmup()
    return [entry for entry in prior if any(entry is other for other in warmup)] or prior


def _rejection(entry: Compile, call: Uncovered) -> _Rejection:
    reason = _reason_of(entry, call)
    by_context = _by_context(entry, call)
    if reason is None:
        return _Rejection(entry, by_context & THREAD_STATE, frozenset(), None)
    guards = set(reason.guards)
    # One GLOBAL_STATE guard names all of its fields that differ; what it cannot name has guards
    # of its own, which dynamo did not get to.
    hidden = by_context - GLOBAL_STATE if guards & GLOBAL_STATE else frozenset()
    if guards & GLOBAL_STATE and Guard.TORCH_FUNCTION_MODE in by_context:
        hidden |= {Guard.TORCH_FUNCTION_MODE}
    observed = set(guards)
    if Guard.INFERENCE_MODE in by_context and guards & {Guard.GRAD_MODE, Guard.DISPATCH_KEYS}:
        # Inference mode has no guard of its own: it switches gradients off and changes the
        # dispatch keys of the tensors made under it. Both contexts were recorded, so it is seen.
        guards -= {Guard.GRAD_MODE, Guard.DISPATCH_KEYS}
        guards.add(Guard.INFERENCE_MODE)
        observed = guards
    return _Rejection(entry, frozenset(guards | hidden), frozenset(observed), reason)


def _by_context(entry: Compile, call: Uncovered) -> frozenset[Guard]:
    if entry.context is None or call.context is None:
        return frozenset()
    found = differing(entry.context, call.context)
    # Gradients are off in inference mode; one difference is not two.
    return found - {Guard.GRAD_MODE} if Guard.INFERENCE_MODE in found else found


def _reason_of(entry: Compile, call: Uncovered) -> Reason | None:
    reasons = call.compile.reasons if call.compile else ()
    usable = [reason for reason in reasons if Guard.UNEXPECTED not in reason.guards]
    number = entry.compile_id or (entry.entry.compile_id if entry.entry else None)
    for reason in usable:
        if reason.entry is not None and reason.entry == number:
            return reason
    unnumbered = [reason for reason in usable if reason.entry is None]
    return unnumbered[0] if unnumbered else None


def _as_leader(history: CodeHistory, call: Uncovered) -> list[_Rejection]:
    """What is known of the call that this one repeated: both lacked the same entry."""
    leader = leader_of(history, call)
    for other in history.uncovered if leader else ():
        if other.compile is leader and other is not call:
            judgement = judge(history, other)
            if judgement is not None:
                return [_Rejection(judgement.entry, judgement.guards, frozenset(), None)]
    return []


def _distance(rejection: _Rejection) -> tuple[bool, bool, int]:
    state_only = rejection.guards <= THREAD_STATE
    return state_only, Guard.DEVICE in rejection.guards, len(rejection.guards)


def _later(warm: list[Compile], call: Uncovered) -> dict[Guard, Reason]:
    warm_ids = {entry.compile_id for entry in warm}
    found: dict[Guard, Reason] = {}
    for reason in call.compile.reasons if call.compile else ():
        if reason.entry is not None and reason.entry not in warm_ids:
            for guard in reason.guards:
                found.setdefault(guard, reason)
    return found
