"""CR403: the recompile limit was hit, and other threads' calls run eager for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import versions, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.counting import eager_total
from harness.causes.errors import distinct
from harness.statements import Note, Remedy, SharedState, Statement
from harness.timeline.eager import LIMIT_ROUTES
from harness.timeline.history import CodeHistory
from harness.timeline.model import Compile, EagerCall, ErrorSeen
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR403",
    title="recompile-limit-eager",
    what=(
        "A function was compiled as often as `recompile_limit` allows. From then on a call that no "
        "entry fits runs eager, in every thread and for good: slow, and with dense attention where "
        "it calls `flex_attention`. Under `fullgraph=True` it raises instead."
    ),
    why=(
        "The limit counts a code object's entries, whichever thread made them, and a thread that "
        "hits it marks the code object itself to make no more. Torch logs one warning, in the "
        "thread that hit it; later calls leave no trace."
    ),
    evidence=(
        "A compile that failed over the limit, and either eager calls of the same function in "
        "another thread, or entries that other threads made in the time since more than one called "
        "it. A thread that uses up the limit alone, to its own cost, is a note."
    ),
    remedy=Remedy(
        text=(
            "Remove what makes it recompile (see the findings before this one). If the variants "
            "are meant, raise the limit for the function itself (torch 2.12 and newer), or make a "
            "compiled function for each kind of call. `torch._dynamo.reset()` lifts the mark, "
            "while no thread calls compiled code."
        ),
        snippet="f = torch.compile(f, recompile_limit=64)",
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    upstream=("pytorch/pytorch#186537",),
    needs=("compiles", "guards", "eager"),
    may_follow=("CR1", "CR20", "CR303", "CR319"),
)

_RAISED = "FailOnRecompileLimitHit"


@dataclass(frozen=True)
class _Hit:
    """A limit that was hit, and whom it concerns besides the thread that hit it.

    ``eager``: calls that ran eager since, in all threads. ``victims``: the other threads among
    those. ``users``: other threads that used up part of the limit while several called. ``raised``:
    errors under ``fullgraph``, each in the thread that raised it first. ``explained``: CR107 says
    why the thread had this limit.
    """

    history: CodeHistory
    compile: Compile
    eager: tuple[EagerCall, ...]
    victims: tuple[int, ...]
    users: tuple[int, ...]
    raised: tuple[ErrorSeen, ...]
    explained: bool


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Limits that one thread hit to another's cost."""
    known = frozenset[int]().union(*(found.explains for found in earlier if found.code == "CR107"))
    outcome = Outcome()
    for history in timeline.program_codes():
        hits = [c for c in history.compiles if c.limit_hit]
        if not hits:
            continue
        hit = _hit(timeline, history, hits[0], known)
        if hit.victims or hit.users or (hit.explained and hit.raised):
            outcome.found.append(_finding(timeline, hit))
        elif not hit.explained:
            outcome.notes.append(_note(timeline, hit, hits))
    return outcome


def _hit(timeline: Timeline, history: CodeHistory, hit: Compile, known: frozenset[int]) -> _Hit:
    eager = tuple(
        c for c in timeline.eager if c.code.id == history.code.id and c.route in LIMIT_ROUTES
    )
    tids = [c.tid for c in eager]
    if not timeline.live("eager"):  # then a miss after which nothing compiled has to tell it
        tids = [c.tid for c in history.uncovered if c.t > hit.t0 and c.compile is None]
    raised = _raised(timeline, history, hit)
    tids += [error.tid for error in raised]
    end = history.warmup_end
    users = [c.tid for c in history.entries_before(hit.t0) if end is not None and c.t0 >= end]
    return _Hit(
        history=history,
        compile=hit,
        eager=eager,
        victims=tuple(dict.fromkeys(t for t in tids if _is_other(timeline, t, hit))),
        users=tuple(dict.fromkeys(t for t in users if _is_other(timeline, t, hit))),
        raised=raised,
        explained=not known.isdisjoint(hit.seqs),
    )


def _raised(timeline: Timeline, history: CodeHistory, hit: Compile) -> tuple[ErrorSeen, ...]:
    """Errors over the limit in threads that called this function, each once.

    Torch's text names no function, and whoever waits for a thread or a future raises its error too.
    """
    errors = [
        error
        for error in timeline.errors
        if error.t >= hit.t0 and any(_RAISED in link.type for link in error.chain)
    ]
    return tuple(e for e in distinct(errors) if e.tid in history.sightings or history.autograd)


def _is_other(timeline: Timeline, tid: int, hit: Compile) -> bool:
    """Whether a thread is another one than hit the limit, or than it was hit for."""
    served = [thread.tid for thread in (*timeline.served_by(tid), *timeline.served_by(hit.on))]
    return tid not in {hit.tid, hit.on} and not {hit.tid, tid} & set(served)


def _finding(timeline: Timeline, hit: _Hit) -> Found:
    compile_, name = hit.compile, hit.history.code.name
    who = timeline.name(compile_.tid)
    entries = hit.history.entries_before(compile_.t0)
    limit = "" if compile_.limit is None else f" of {compile_.limit}"
    return Found(
        code="CR403",
        statements=tuple(_statements(timeline, hit, entries)),
        headline=(
            f"Thread `{who}` hit the recompile limit{limit} for `{name}`"
            f"{_to_whose_cost(timeline, hit)}: the limit counts the entries of all threads, and "
            "its mark is on the function."
        ),
        explains=frozenset(compile_.seqs).union(
            (call.seq for call in hit.eager), (error.seq for error in hit.raised)
        ),
        because=frozenset(compile_.seqs).union(*(c.seqs for c in entries)),
        threads=words.refs(timeline, [compile_.tid, *hit.users, *hit.victims]),
        stacks=(
            words.stack(
                timeline, compile_.tid, "hit the recompile limit", compile_.where, compile_.seqs[0]
            ),
            *(
                words.stack(timeline, call.tid, "ran eager", call.where, call.seq)
                for call in [c for c in hit.eager if c.tid in hit.victims][:1]
            ),
        ),
        shared_state=SharedState(
            name=f"the cache of `{name}`, now marked to take no more entries",
            writer=f"`{who}`, hitting the limit{limit}",
            reader="every thread that calls it",
        ),
    )


def _to_whose_cost(timeline: Timeline, hit: _Hit) -> str:
    if hit.victims:
        verb = "raised" if not hit.eager else "run eager"
        return f", and calls of {words.object_(timeline, hit.victims)} {verb} for it"
    if hit.users:
        return f", part of which {words.object_(timeline, hit.users)} had used up"
    return " and raised"


def _statements(timeline: Timeline, hit: _Hit, entries: Sequence[Compile]) -> list[Statement]:
    compile_, name = hit.compile, hit.history.code.name
    makers = {
        tid: sum(c.tid == tid for c in entries) for tid in dict.fromkeys(c.tid for c in entries)
    }
    made = words.listing(f"{number} by `{timeline.name(tid)}`" for tid, number in makers.items())
    limit = "" if compile_.limit is None else f" of {compile_.limit}"
    found = [
        Statement(
            f"`{timeline.name(compile_.tid)}` hit the recompile limit{limit} for `{name}`, which "
            f"had {words.count(len(entries), 'entry', 'entries')}"
            f"{f', {made}' if made else ''}.",
            "observed",
            words.seqs(compile_.seqs, *(c.seqs[-1:] for c in entries)),
        )
    ]
    for tid in dict.fromkeys(call.tid for call in hit.eager):
        own = [call for call in hit.eager if call.tid == tid]
        text = (
            f"In `{timeline.name(tid)}` at least {words.count(eager_total(own), 'call')} of "
            f"`{name}` ran eager for it: no entry fitted, and nothing was compiled."
        )
        found.append(Statement(text, "observed", words.seqs(c.seq for c in own)))
    found += [
        Statement(
            f"`{timeline.name(error.tid)}` raised `{_RAISED}`, since it may not run eager.",
            "observed",
            (error.seq,),
        )
        for error in hit.raised
    ]
    return found


def _note(timeline: Timeline, hit: _Hit, hits: Sequence[Compile]) -> Note:
    history = hit.history
    limit = "" if hit.compile.limit is None else f" of {hit.compile.limit}"
    then = "raise" if hit.raised else "run eager"
    since = ".".join(map(str, versions.CONFIG_PER_THREAD))
    return Note(
        text=(
            f"{words.subject(timeline, [c.tid for c in hits], [history])} hit the recompile limit"
            f"{limit} for `{history.code.name}`, which no other thread that called it had "
            f"raised (settings are per thread since torch {since}); calls that no entry fits "
            f"{then} from then on."
        ),
        code="CR403",
        pid=timeline.pid,
        evidence=words.seqs(*(c.seqs for c in hits)),
    )
