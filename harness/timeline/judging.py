"""Why a call was not covered: which guard of which entry stood in its way.

A call is judged against the entries of the warm-up (those compiled before a second thread called
the code object) that existed when the call began, since what the warm-up lacked is the question.
Where several entries rejected it for different reasons, the nearest entry decides: if one differs
in the inputs only, the thread's state was covered and is not the cause.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.timeline.contexts import differing
from harness.timeline.history import CodeHistory
from harness.timeline.model import Compile, Uncovered
from harness.timeline.reasons import GLOBAL_STATE, THREAD_STATE, Guard, Reason

_OF_INFERENCE_MODE = {Guard.GRAD_MODE, Guard.DISPATCH_KEYS, Guard.REQUIRES_GRAD}
"""Guards that fail where the modes of two threads differ, whichever dynamo gets to first."""


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


def judge_all(histories: Iterable[CodeHistory]) -> dict[int, Judgement]:
    """Judge every uncovered call, by the call's identity.

    Left out is a call that met no entry, or of which nothing is known of why it was rejected. For a
    recording read to its end. Takes time in proportion to the calls.
    """
    judged: dict[int, Judgement] = {}
    for history in histories:
        own = _Judge(history).judge()
        judged |= {id(call): own[id(call)] for call in history.uncovered if id(call) in own}
    return judged


@dataclass(frozen=True, slots=True)
class _Rejection:
    entry: Compile
    guards: frozenset[Guard]
    observed: frozenset[Guard]
    reason: Reason | None


@dataclass(slots=True)
class _Entries:
    """Entries of one code object in the order of their compiles.

    Those of one context are rejected alike unless torch gave a reason for one of them, so only the
    first of each context need be looked at, and those with a reason.
    """

    places: dict[int, int] = field(default_factory=dict)
    by_context: dict[int, list[Compile]] = field(default_factory=dict)
    by_number: dict[str, list[Compile]] = field(default_factory=dict)

    def add(self, entry: Compile) -> None:
        self.places[id(entry)] = len(self.places)
        self.by_context.setdefault(id(entry.context), []).append(entry)
        for number in {entry.compile_id, entry.entry.compile_id if entry.entry else None}:
            if number is not None:
                self.by_number.setdefault(number, []).append(entry)

    def to_look_at(self, t: int, named: Sequence[str]) -> list[Compile]:
        """The entries at time ``t`` that tell all that there is to tell, in order."""
        found = {id(e): e for n in named for e in self.by_number.get(n, ()) if _there(e, t)}
        for entries in self.by_context.values():
            first = next((e for e in entries if id(e) not in found and _there(e, t)), None)
            if first is not None:
                found[id(first)] = first
        return sorted(found.values(), key=lambda entry: self.places[id(entry)])

    def has(self, number: str, t: int) -> bool:
        """Whether a compile of that id had left an entry by time ``t``."""
        entries = self.by_number.get(number, ())
        return any(entry.compile_id == number and _there(entry, t) for entry in entries)


class _Judge:
    """Judges the calls of one code object."""

    def __init__(self, history: CodeHistory) -> None:
        self._history = history
        self._warm, self._all = _Entries(), _Entries()
        self._made: dict[int, int] = {}
        for entry in history.compiles:
            if not entry.made_entry or entry.t1 is None:
                continue
            self._all.add(entry)
            if history.made_in_warmup(entry):
                self._warm.add(entry)
            self._made[entry.tid] = min(entry.t1, self._made.get(entry.tid, entry.t1))
        self._by_compile: dict[int, Uncovered] = {}
        for call in history.uncovered:
            if call.compile is not None:
                self._by_compile.setdefault(id(call.compile), call)
        self._judged: dict[int, Judgement] = {}

    def judge(self) -> dict[int, Judgement]:
        """Judge every call, by identity: those that others repeated first."""
        for call in sorted(self._history.uncovered, key=_began):
            judgement = self._one(call)
            if judgement is not None:
                self._judged[id(call)] = judgement
        return self._judged

    def _one(self, call: Uncovered) -> Judgement | None:
        named = [r.entry for r in _reasons(call) if r.entry is not None]
        entries = self._warm
        looked_at = entries.to_look_at(call.t, named)
        if not looked_at:
            entries = self._all
            looked_at = entries.to_look_at(call.t, named)
        if not looked_at:
            return None
        rejections = [_rejection(entry, call) for entry in looked_at]
        known = [rejection for rejection in rejections if rejection.guards]
        if len(known) < len(rejections):
            known = list(self._as_leader(call))
        if not known:
            return None
        nearest = min(known, key=_distance)
        return Judgement(
            history=self._history,
            call=call,
            entry=nearest.entry,
            guards=nearest.guards,
            observed=nearest.observed,
            reason=nearest.reason,
            own=self._is_own(call),
            later=_later(entries, call),
        )

    def _is_own(self, call: Uncovered) -> bool:
        """Whether the thread had made an entry itself.

        What is called once the warm-up was said to be over should fit, whoever compiled it.
        """
        done = self._history.done
        if done is not None and call.t >= done:
            return False
        return self._made.get(call.tid, call.t + 1) <= call.t

    def _as_leader(self, call: Uncovered) -> Iterator[_Rejection]:
        """What is known of the call that this one repeated: both lacked the same entry."""
        other = self._by_compile.get(id(call.leader)) if call.leader else None
        judgement = self._judged.get(id(other)) if other is not None else None
        if judgement is not None:
            yield _Rejection(judgement.entry, judgement.guards, frozenset(), None)


def _there(entry: Compile, t: int) -> bool:
    return entry.t1 is not None and entry.t1 <= t


def _began(call: Uncovered) -> int:
    return call.compile.t0 if call.compile else call.t


def _reasons(call: Uncovered) -> tuple[Reason, ...]:
    return call.compile.reasons if call.compile else ()


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
    if Guard.INFERENCE_MODE in by_context and guards & _OF_INFERENCE_MODE:
        # Inference mode has no guard of its own: it switches gradients off and changes the
        # dispatch keys of the tensors made under it. Both contexts were recorded, so it is seen.
        guards -= _OF_INFERENCE_MODE
        guards.add(Guard.INFERENCE_MODE)
        observed = guards
    return _Rejection(entry, frozenset(guards | hidden), frozenset(observed), reason)


def _by_context(entry: Compile, call: Uncovered) -> frozenset[Guard]:
    if entry.context is None or call.context is None or entry.context is call.context:
        return frozenset()
    found = differing(entry.context, call.context)
    # Gradients are off in inference mode; one difference is not two.
    return found - {Guard.GRAD_MODE} if Guard.INFERENCE_MODE in found else found


def _reason_of(entry: Compile, call: Uncovered) -> Reason | None:
    usable = [reason for reason in _reasons(call) if Guard.UNEXPECTED not in reason.guards]
    number = entry.compile_id or (entry.entry.compile_id if entry.entry else None)
    for reason in usable:
        if reason.entry is not None and reason.entry == number:
            return reason
    unnumbered = [reason for reason in usable if reason.entry is None]
    return unnumbered[0] if unnumbered else None


def _distance(rejection: _Rejection) -> tuple[bool, bool, int]:
    state_only = rejection.guards <= THREAD_STATE
    return state_only, Guard.DEVICE in rejection.guards, len(rejection.guards)


def _later(warm: _Entries, call: Uncovered) -> dict[Guard, Reason]:
    found: dict[Guard, Reason] = {}
    for reason in _reasons(call):
        if reason.entry is not None and not warm.has(reason.entry, call.t):
            for guard in reason.guards:
                found.setdefault(guard, reason)
    return found
