"""CR107: a dynamo setting was changed in one thread and the others run with the default."""

from collections.abc import Mapping, Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Remedy, SharedState, Stack, Statement
from harness.timeline.history import CodeHistory
from harness.timeline.judging import seqs_of
from harness.timeline.model import Compile, Config
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR107",
    title="config-per-thread",
    what=(
        "A value of `torch._dynamo.config`, such as `recompile_limit`, was set in one thread; a "
        "worker thread ran with the default, hit the lower limit, and from then on torch runs the "
        "function eagerly, in every thread."
    ),
    why=(
        "Since torch 2.12 an assignment to `torch._dynamo.config` is a context variable's value, "
        "which a new thread does not inherit. When one thread hits its limit, dynamo marks the "
        "code object itself to make no more entries, whoever calls it."
    ),
    evidence=(
        "A compile that hit a recompile limit of L entries in one thread, while another thread "
        "that called the same code object has a higher limit, which the entries do not exceed."
    ),
    remedy=Remedy(
        text=(
            "Give the limit to `torch.compile` itself (torch 2.12 or newer): it then holds in "
            "every thread. Or set the config at the start of each thread."
        ),
        snippet="f = torch.compile(f, recompile_limit=64)",
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="2.12 and newer",
    upstream=("pytorch/pytorch#186537",),
    needs=("compiles", "wrapper"),
)

LIMITS = ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Limits hit in one thread that another thread had raised."""
    outcome = Outcome()
    for history in timeline.program_codes():
        hits = [c for c in history.compiles if c.limit_hit]
        explained = {}
        limits = _limits(timeline, history) if hits else {}
        for hit in hits:
            other = _raised_by(limits, history, hit)
            if other is not None:
                explained[hit.tid] = (hit, other)
        if explained:
            hit, other = next(iter(explained.values()))
            tids = list(explained)
            outcome.found.append(_finding(timeline, history, hit, other, tids))
    return outcome


def _raised_by(
    limits: Mapping[int, int], history: CodeHistory, hit: Compile
) -> tuple[int, int] | None:
    """Another thread of the code object's and its limit, which this many entries do not exceed."""
    if hit.limit is None:
        return None
    least = max(hit.limit, len(history.entries_before(hit.t0)))
    raised = ((tid, limit) for tid, limit in limits.items() if tid != hit.tid and limit > least)
    return next(raised, None)


def _limits(timeline: Timeline, history: CodeHistory) -> dict[int, int]:
    """The limit of each thread that called the code object, its first compiler's first."""
    compiled: dict[int, int] = {}
    for compile_ in history.compiles:
        if compile_.limit is not None:
            compiled.setdefault(compile_.tid, compile_.limit)
    first = history.first_compiler
    tids = (*(() if first is None else (first,)), *history.sightings)
    found: dict[int, int] = {}
    for tid in tids:
        limit = compiled.get(tid)
        limit = _configured(timeline, tid) if limit is None else limit
        if limit is not None:
            found.setdefault(tid, limit)
    return found


def _configured(timeline: Timeline, tid: int) -> int | None:
    config = _config_of(timeline, tid)
    values = (config.get(name) for name in LIMITS)
    return next((int(value) for value in values if isinstance(value, int | float)), None)


def _config_of(timeline: Timeline, tid: int) -> Config:
    thread = timeline.threads.get(tid)
    return thread.context.config if thread and thread.context else {}


def _finding(
    timeline: Timeline,
    history: CodeHistory,
    hit: Compile,
    other: tuple[int, int],
    tids: Sequence[int],
) -> Found:
    name, setter, limit = history.code.name, timeline.name(other[0]), other[1]
    after = [c for c in history.uncovered if c.t > hit.t0]
    eager = sum(call.times for call in after if call.compile is None)
    theirs = [c.seqs[0] for c in history.compiles if c.tid == other[0]]
    thread = timeline.threads.get(other[0])
    limits = [
        Statement(
            f"`{timeline.name(hit.tid)}` hit the recompile limit of {hit.limit} for `{name}`, "
            f"with {words.count(len(history.entries_before(hit.t0)), 'entry', 'entries')} in the "
            f"cache; in `{setter}` the limit is {limit}.",
            "observed",
            words.seqs(hit.seqs, theirs[:1], (thread.context_seq,) if thread else ()),
        ),
        Statement(
            f"From then on torch runs `{name}` eagerly in every thread that finds no entry: "
            f"{words.count(eager, 'such miss was', 'such misses were')} recorded.",
            "inferred",
            words.seqs(*(call.seqs for call in after)),
        ),
    ]
    return Found(
        code="CR107",
        statements=tuple(limits + _settings(timeline, hit.tid, other[0])),
        headline=(
            f"{words.subject(timeline, tids, [history])} hit the recompile limit of {hit.limit} "
            f"for `{name}` although `{setter}` has set {limit}: since torch 2.12 "
            "`torch._dynamo.config` is per thread. In every thread, calls that no entry fits now "
            "run eagerly."
        ),
        explains=frozenset(hit.seqs).union(*(seqs_of(call) for call in after)),
        threads=words.refs(timeline, [*tids, other[0]]),
        stacks=(
            words.stack(timeline, hit.tid, "hit the recompile limit", hit.where, hit.seqs[0]),
            _setter_stack(timeline, history, other[0]),
        ),
        shared_state=SharedState(
            name=f"the cache of `{name}`, now marked to take no more entries",
            writer=f"`{timeline.name(hit.tid)}`, hitting its limit of {hit.limit}",
            reader="every thread that calls it",
        ),
    )


def _setter_stack(timeline: Timeline, history: CodeHistory, tid: int) -> Stack:
    compile_ = next((c for c in history.compiles if c.tid == tid), None)
    frames, seq = (compile_.where, compile_.seqs[0]) if compile_ else ((), 0)
    return words.stack(timeline, tid, "called it with the higher limit", frames, seq)


def _settings(timeline: Timeline, tid: int, setter: int) -> list[Statement]:
    here, there = _config_of(timeline, tid), _config_of(timeline, setter)
    differ = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
    if not differ:
        return []
    values = words.listing(
        f"`{key}` is {_value(there, key)} in `{timeline.name(setter)}` and {_value(here, key)} in "
        f"`{timeline.name(tid)}`"
        for key in differ
    )
    evidence = words.seqs(timeline.threads[t].context_seq for t in (setter, tid))
    return [Statement(f"`torch._dynamo.config`: {values}.", "observed", evidence)]


def _value(config: Config, key: str) -> str:
    return repr(config[key]) if key in config else "the default"
