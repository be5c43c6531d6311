"""CR312: a thread set the compiler's stance, and other threads' calls ran under it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.counting import eager_total
from harness.phrases import quoted
from harness.statements import Note, Remedy, SharedState, Stack, Statement
from harness.timeline.eager import SKIP_GUARDS, set_before, setting_of
from harness.timeline.model import EagerCall, ErrorSeen, StanceCall, StanceSet
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR312",
    title="stance-leak",
    what=(
        "One thread set a stance (`torch.compiler.set_stance`), perhaps for a block of its own, "
        "and calls of other threads ran under it: eager, without their guards being checked, or "
        "raising where they would have compiled."
    ),
    why=(
        "The stance is one global for the process, read by each call of compiled code as it "
        "begins; as a context manager `set_stance` writes and restores that global. "
        "`skip_guard_eval_unsafe` is part of it: a thread whose inputs no longer fit can then be "
        "given another variant's graph, and its results are wrong without a word."
    ),
    evidence=(
        "A call of one thread under a stance that another one set after that thread had begun: it "
        "ran eager, or with guards skipped, or an error of torch's names the stance. A stance set "
        "before the thread was started, or by the thread itself, is taken for meant."
    ),
    remedy=Remedy(
        text=(
            "Set the stance once, before the threads start, or while none of them calls compiled "
            "code. For eager calls in one thread alone call the plain function there."
        ),
        snippet=(
            "compiled = torch.compile(step)\n"
            "compiled(batch)                        # the training threads\n"
            "step(batch)                            # the evaluating thread, instead of a stance"
        ),
        seen_to_work="torch 2.11.0, 2.13.0 and 2.14.1 on CPU",
    ),
    versions="all (seen on 2.11.0, 2.13.0 and 2.14.1)",
    upstream=("pytorch/pytorch#196637",),
    needs=("wrapper", "guards", "eager", "stance"),
    may_follow=("CR1", "CR2"),
)

_ON_RECOMPILE = "Detected recompile when torch.compile stance is"
_ON_SKIPPED = "Recompilation triggered with skip_guard_eval_unsafe stance"
RAISED = (_ON_RECOMPILE, _ON_SKIPPED)
"""How the messages begin that torch raises for a stance (``torch/_dynamo/eval_frame.py``)."""


@dataclass(frozen=True)
class _Leak:
    """What one thread's stance did to others."""

    by: int
    stance: str
    eager: tuple[EagerCall, ...]
    calls: tuple[StanceCall, ...]
    errors: tuple[ErrorSeen, ...]

    @property
    def events(self) -> list[EagerCall | StanceCall | ErrorSeen]:
        """All of it, in order of time."""
        events: list[EagerCall | StanceCall | ErrorSeen] = [*self.eager, *self.calls, *self.errors]
        return sorted(events, key=lambda event: event.t)

    @property
    def tids(self) -> list[int]:
        """The threads that it was done to."""
        return list(dict.fromkeys(event.tid for event in self.events))


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Calls under another thread's stance; a note on those under the caller's own."""
    leaks = list(_leaks(timeline))
    own = [c for c in timeline.eager if c.route == "stance" and not _is_leak(timeline, c)]
    notes = [_note(timeline, own)] if own and not leaks else []
    return Outcome(found=[_finding(timeline, leak) for leak in leaks], notes=notes)


def _leaks(timeline: Timeline) -> Iterable[_Leak]:
    eager = [c for c in timeline.eager if c.route == "stance" and _is_leak(timeline, c)]
    # Of the calls under a stance that ran compiled only those with guards skipped were changed.
    skipped = [
        c for c in timeline.under_stance if c.stance == SKIP_GUARDS and _is_leak(timeline, c)
    ]
    raised = [
        (error, setter)
        for error in timeline.errors
        if error.error.message.startswith(RAISED)
        and (setter := _setter(timeline, error)) is not None
    ]
    kinds = [(c.by, c.detail) for c in eager] + [(c.by, c.stance) for c in skipped]
    for by, stance in dict.fromkeys([*kinds, *(setter for _, setter in raised)]):
        if by is not None:
            yield _Leak(
                by=by,
                stance=stance,
                eager=tuple(c for c in eager if (c.by, c.detail) == (by, stance)),
                calls=tuple(c for c in skipped if (c.by, c.stance) == (by, stance)),
                errors=tuple(error for error, setter in raised if setter == (by, stance)),
            )


def _is_leak(timeline: Timeline, call: EagerCall | StanceCall) -> bool:
    """Whether a call came under a stance that another thread had set, not for it."""
    return _is_foreign(timeline, call.tid, call.by, setting_of(timeline, call))


def _is_foreign(timeline: Timeline, tid: int, by: int | None, setting: StanceSet | None) -> bool:
    """Whether a stance was set by another thread ``by``, after this one had begun.

    Autograd's threads work for those that called backward, so theirs is no other thread's.
    """
    if by is None or by == tid:
        return False
    if any(thread.tid == by for thread in timeline.served_by(tid)):
        return False
    thread = timeline.threads.get(tid)
    return setting is None or thread is None or thread.t0 < setting.t


def _setter(timeline: Timeline, error: ErrorSeen) -> tuple[int, str] | None:
    """The other thread whose stance made this one raise, and the stance."""
    message = error.error.message
    stance = "fail_on_recompile" if message.startswith(_ON_RECOMPILE) else SKIP_GUARDS
    # What a call found when it began tells better than who set the stance last.
    found = [c for c in timeline.under_stance if c.tid == error.tid and c.t <= error.t]
    calls = [c for c in found if c.stance == stance][-1:]
    sets = [s for s in timeline.stances if s.stance == stance and s.t <= error.t][-1:]
    setting = setting_of(timeline, calls[0]) if calls else sets[0] if sets else None
    by = calls[0].by if calls else sets[0].tid if sets else None
    if by is None or not _is_foreign(timeline, error.tid, by, setting):
        return None
    return by, stance


def _finding(timeline: Timeline, leak: _Leak) -> Found:
    tids = leak.tids
    setting = _setting(timeline, leak)
    codes = [*(c.code for c in leak.eager), *(c.code for c in leak.calls)]
    names = words.codes(codes) or "compiled code"
    who, setter = words.object_(timeline, tids), timeline.name(leak.by)
    return Found(
        code="CR312",
        statements=tuple(_statements(timeline, leak, setting.seq if setting else 0)),
        headline=(
            f"Calls of {names} in {who} {_what(leak)} because `{setter}` had set the stance "
            f"`{leak.stance}`: the compiler's stance is one for the process."
        ),
        explains=frozenset(event.seq for event in leak.events),
        because=_misses(timeline, leak),
        threads=words.refs(timeline, [*tids, leak.by]),
        stacks=_stacks(timeline, leak),
        shared_state=SharedState(
            name="the stance of `torch.compiler.set_stance`",
            writer=f"`{setter}`, setting `{leak.stance}`",
            reader=f"{words.names(timeline, tids)}, calling {names}",
        ),
    )


def _setting(timeline: Timeline, leak: _Leak) -> StanceSet | None:
    """Where the stance was set under which the first of it happened."""
    first = leak.events[0]
    if isinstance(first, ErrorSeen):
        return set_before(timeline, leak.by, leak.stance, first.t)
    return setting_of(timeline, first)


def _what(leak: _Leak) -> str:
    said = []
    if leak.eager:
        said.append("ran eager")
    if leak.calls:
        said.append("ran with their guards skipped")
    if leak.errors:
        said.append("raised")
    return words.listing(said)


def _statements(timeline: Timeline, leak: _Leak, setting: int) -> Iterable[Statement]:
    setter = timeline.name(leak.by)
    for tid in dict.fromkeys(call.tid for call in leak.eager):
        own = [call for call in leak.eager if call.tid == tid]
        number = eager_total(own)
        text = (
            f"In `{timeline.name(tid)}` at least {words.count(number, 'call')} of "
            f"{words.codes(c.code for c in own)} ran eager under the stance `{leak.stance}` that "
            f"`{setter}` had set: no guard was evaluated for it that held, and nothing compiled."
        )
        yield Statement(text, "observed", words.seqs((setting,), (c.seq for c in own)))
    for tid in dict.fromkeys(call.tid for call in leak.calls):
        skipped = [call for call in leak.calls if call.tid == tid]
        text = (
            f"`{timeline.name(tid)}` called {words.codes(c.code for c in skipped)} while `{setter}`"
            f" had set `{SKIP_GUARDS}`: only the guards that tell its variants apart are checked, "
            "so it can get a graph that does not fit, and wrong results."
        )
        yield Statement(text, "observed", words.seqs((setting,), (c.seq for c in skipped)))
    for error in leak.errors:
        text = (
            f"`{timeline.name(error.tid)}` raised torch's error for the stance `{leak.stance}` "
            f"that `{setter}` had set: {quoted(error.error.message.splitlines()[0][:160])}."
        )
        yield Statement(text, "observed", words.seqs((setting, error.seq)))


def _misses(timeline: Timeline, leak: _Leak) -> frozenset[int]:
    """What no entry fitted in those threads: it is why they would have compiled."""
    about = {(call.tid, call.code.id) for call in leak.eager}
    found: set[int] = set()
    for history in timeline.program_codes():
        for call in history.uncovered:
            raised = any(e.tid == call.tid and e.t >= call.t for e in leak.errors)
            if call.compile is None and (raised or (call.tid, call.code.id) in about):
                found.update(call.seqs)
    return frozenset(found)


def _stacks(timeline: Timeline, leak: _Leak) -> tuple[Stack, ...]:
    stacks = []
    called: tuple[EagerCall | StanceCall, ...] = (*leak.eager, *leak.calls)
    if called:
        call = called[0]
        did = "ran eager" if leak.eager else "called with guards skipped"
        stacks.append(words.stack(timeline, call.tid, did, call.where, call.seq))
    elif leak.errors:
        error = leak.errors[0]
        frames = tuple(reversed(error.error.frames))
        stacks.append(words.stack(timeline, error.tid, "raised", frames, error.seq))
    setting = _setting(timeline, leak)
    if setting is not None:
        stacks.append(words.stack(timeline, leak.by, "set the stance", setting.where, setting.seq))
    return tuple(stacks)


def _note(timeline: Timeline, calls: Sequence[EagerCall]) -> Note:
    text = (
        f"At least {words.count(eager_total(calls), 'call')} of "
        f"{words.codes(c.code for c in calls)} in "
        f"{words.object_(timeline, (c.tid for c in calls))} ran eager under a stance "
        f"({words.listing(f'`{c.detail}`' for c in calls)}) that the thread had set itself or "
        "found when it began."
    )
    return Note(
        text=text, code="CR312", pid=timeline.pid, evidence=words.seqs(c.seq for c in calls)
    )
