"""The cache inventory: what was compiled of each function, and why calls did not use it."""

import itertools
import re
from collections.abc import Iterator, Sequence

from harness.causes import words
from harness.diagnosis.coverage import MAX_VARIANTS, code_ref, differs, shown
from harness.diagnosis.report import CacheVariant, CodeCache, EagerUse, Rejection
from harness.events.values import CacheEntry
from harness.timeline.contexts import describe, shapes
from harness.timeline.eager import LIMIT_ROUTES, MODE_ROUTES
from harness.timeline.history import CodeHistory
from harness.timeline.judging import seqs_of
from harness.timeline.model import Compile, EagerCall
from harness.timeline.repeats import repeats
from harness.timeline.timeline import Timeline

MAX_EAGER = 32
MAX_TENSORS = 6

ROUTES = {
    "recompile_limit": "the recompile limit was hit",
    "run_only": "no entry fitted, and the recompile limit had been hit",
    "suppressed_error": "its compile failed, and errors are suppressed",
    "unsupported": "dynamo cannot compile it",
    "no_graph": "there was nothing to compile",
    "stance": "the stance was",
    "dispatch_mode": "a dispatch mode was on",
    "skipped_for_mode": "a dispatch mode had been on at an earlier call",
    "fx_flag": "another thread traced with FX",
}
"""Why a call ran eager, by its route."""

_TENSOR = re.compile(
    r"^TENSOR_MATCH: check_tensor\((?P<name>.+?), (?:\w+, )?DispatchKeySet\([^)]*\), "
    r"(?:torch\.)?(?P<dtype>[\w.]+), device=(?P<device>\w+), requires_grad=(?P<grad>\w+), "
    r"size=(?P<size>\[[^\]]*\])"
)
_LOCAL = re.compile(r"L\['(\w+)'\]")


def caches(timeline: Timeline) -> list[CodeCache]:
    """The cache of every compiled code object of the program's."""
    eager = {call.code.id for call in timeline.eager}
    return [
        _cache(timeline, history)
        for history in shown(timeline)
        if history.compiles or history.code.id in eager
    ]


def accepts(guards: Sequence[str]) -> str:
    """The arguments that an entry's guards ask for: ``x [?, 16] float32 grad``.

    ``?`` is a size that may vary. Other guards can bound it. Empty if no guard tells. Tensors that
    the function finds elsewhere, such as weights, are left out.
    """
    found = []
    for guard in guards:
        match = _TENSOR.match(guard)
        if match is None or match["name"].startswith("G["):
            continue
        name = _LOCAL.sub(r"\1", match["name"])
        size = match["size"].replace("None", "?")
        device = "" if match["device"] == "None" else f" device {match['device']}"
        grad = " grad" if match["grad"] == "True" else ""
        found.append(f"{name} {size} {match['dtype']}{device}{grad}")
    more = [f"{len(found) - MAX_TENSORS} more"] if len(found) > MAX_TENSORS else []
    return ", ".join([*found[:MAX_TENSORS], *more])


def _eager(timeline: Timeline, history: CodeHistory) -> tuple[EagerUse, ...]:
    """Calls of the function that ran eager, those of one thread and one reason together."""
    groups: dict[tuple[int, str, str, int | None], list[EagerCall]] = {}
    for call in timeline.eager:
        if call.code.id == history.code.id:
            key = (call.tid, call.route, call.detail, call.by)
            groups.setdefault(key, []).append(call)
    found = [
        EagerUse(
            thread=words.ref(timeline, tid),
            reason=" ".join(
                filter(None, (ROUTES.get(route, "for a reason unknown"), _said(route, detail)))
            ),
            by=words.ref(timeline, by) if by is not None and by != tid else None,
            # Each event counts what its thread did by then.
            count=max(*(call.count for call in calls), sum(call.times for call in calls)),
            evidence=words.seqs(call.seq for call in calls),
        )
        for (tid, route, detail, by), calls in groups.items()
    ]
    return tuple(found[:MAX_EAGER])


def _said(route: str, detail: str) -> str:
    """Torch's words, or the stance's or the modes' names, where they add anything."""
    if route in LIMIT_ROUTES or not detail:
        return ""
    return f"({detail})" if route not in {"stance", *MODE_ROUTES} else f"`{detail}`"


def _cache(timeline: Timeline, history: CodeHistory) -> CodeCache:
    made: dict[str | None, Compile] = {c.compile_id: c for c in history.compiles if c.compile_id}
    entries = history.entries_at_end
    if entries is None:
        entries = tuple(c.entry for c in history.compiles if c.made_entry and c.entry is not None)
    variants: list[CacheVariant] = []
    digests: dict[str, int] = {}
    leaders = _leaders(history)
    numbers: dict[str | None, int] = {}
    for number, entry in enumerate(entries):
        compile_ = made.get(entry.compile_id)
        same = digests.get(entry.digest) if entry.digest else None
        if same is None:
            same = numbers.get(leaders[entry.compile_id]) if entry.compile_id in leaders else None
        digests.setdefault(entry.digest, number)
        numbers.setdefault(entry.compile_id, number)
        if number < MAX_VARIANTS:
            variants.append(_cache_variant(timeline, entry, number, compile_, same))
    rejections = _rejections(timeline, history)
    listed = tuple(itertools.islice(rejections, MAX_VARIANTS))
    not_listed = sum(1 for _ in rejections)
    return CodeCache(
        code=code_ref(history.code),
        pid=timeline.pid,
        entries=tuple(variants),
        rejections=listed,
        complete=history.entries_at_end is not None,
        eager=_eager(timeline, history),
        left_out=len(entries) - len(variants) + history.entries_left_out + not_listed,
    )


def _leaders(history: CodeHistory) -> dict[str | None, str | None]:
    """Which compile each one is known to have repeated, by compile id."""
    found: dict[str | None, str | None] = {}
    for call in history.uncovered:
        leader = call.leader
        if leader is None or call.compile is None:
            continue
        if repeats(leader, call.compile) != "call":
            found[call.compile.compile_id] = leader.compile_id
    return found


def _cache_variant(
    timeline: Timeline,
    entry: CacheEntry,
    number: int,
    compile_: Compile | None,
    same_as: int | None,
) -> CacheVariant:
    return CacheVariant(
        number=number,
        compile_id=entry.compile_id,
        context=describe(compile_.context) if compile_ else "",
        inputs=shapes(compile_.inputs) if compile_ else "",
        made_by=words.ref(timeline, compile_.tid) if compile_ and not compile_.before else None,
        guards=entry.guards,
        same_as=same_as,
        accepts=accepts(entry.guards),
        before=compile_ is not None and compile_.before,
    )


def _rejections(timeline: Timeline, history: CodeHistory) -> Iterator[Rejection]:
    for call in history.uncovered:
        compile_ = call.compile
        if compile_ is not None and compile_.reasons:
            for reason in compile_.reasons:
                yield Rejection(
                    thread=words.ref(timeline, call.tid),
                    guard=_without_entry(reason.text, reason.entry),
                    entry=reason.entry,
                    evidence=words.seqs(seqs_of(call)),
                )
            continue
        judgement = timeline.judgements().get(id(call))
        if judgement is not None:
            yield Rejection(
                thread=words.ref(timeline, call.tid),
                guard="; ".join(differs(judgement)),
                entry=judgement.entry.compile_id,
                certainty="inferred",
                evidence=words.seqs(seqs_of(call)),
            )


def _without_entry(text: str, entry: str | None) -> str:
    return text.strip().removeprefix(f"{entry}:").strip() if entry else text.strip()
