"""CR311: a triton kernel was tuned by one thread while another called it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Stack, Statement
from harness.timeline.kernels import Tuning
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR311",
    title="cold-autotune-race",
    what=(
        "The first calls of a triton kernel under `@triton.autotune`, made by several threads, die "
        "of `TypeError: 'NoneType' object is not a mapping` in `triton/runtime/autotuner.py`, or "
        "of another error of `None` in a hook of the kernel's. Later calls are fine."
    ),
    why=(
        "An autotuner keeps the arguments of the call that it serves in an attribute of its own, "
        "`nargs`, one for all threads. It reads them for each config that it tries and for its "
        "hooks, and sets them to `None` when the call has returned. A call of another thread puts "
        "its own arguments there and takes them away, in the middle of the first one's tuning. "
        "What `reset_to_zero`, `restore_value` and `prune_configs_by` are given then are the other "
        "call's tensors, or nothing."
    ),
    evidence=(
        "A call that tuned a kernel while another thread tuned the same one; or that failed, with "
        "its arguments gone from the autotuner or another call's in their place. Without the probe "
        "`autotune`: an error of `None` raised in `triton/runtime/autotuner.py` while other "
        "threads ran. What inductor generates is tuned by a class of its own and is not concerned."
    ),
    remedy=Remedy(
        text=(
            "Call each autotuned kernel once in one thread, for every value of its `key`, before "
            "other threads do; or put one lock around the calls until all are tuned."
        ),
        snippet=(
            "for length in lengths:                 # every value of the key, before any thread\n"
            "    kernel[grid](x, y, length)\n"
            "threads = [threading.Thread(target=serve) for _ in range(4)]"
        ),
        seen_to_work="triton 3.6.0 and 3.9.0, the autotuner around a stand-in for a kernel, on CPU",
    ),
    versions="triton 3.6 to 3.9, whatever the torch",
    upstream=(
        "triton-lang/triton#11494",
        "triton-lang/triton#5893",
        "triton-lang/triton#8437",
        "triton-lang/triton#11509",
    ),
    needs=("threads", "autotune"),
)

_FILE = "triton/runtime/autotuner.py"
_NOTHING_THERE = Signature(
    types=("TypeError", "AttributeError"),
    text=re.compile(
        r"'NoneType' object (?:is not a mapping|is not iterable|is not subscriptable|has no attr)"
    ),
    files=(_FILE,),
)
"""In a hook of the kernel's it can be an error of the program's: the recording has to tell."""
_RAISED_THERE = Signature(
    types=_NOTHING_THERE.types, text=_NOTHING_THERE.text, files=(_FILE,), innermost=True
)


@dataclass(frozen=True)
class _Failed:
    """An error of a call; ``tuning`` is the call, if it was recorded."""

    case: Case
    tuning: Tuning | None
    others: tuple[int, ...]


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Tunings that met another thread's call of the same kernel."""
    failed = _failed(timeline)
    met = [tuning for tuning in timeline.tunings if tuning.met and _disturbed(timeline, tuning)]
    return Outcome(found=[_finding(timeline, failed, met)] if failed or met else [])


def _disturbed(timeline: Timeline, tuning: Tuning) -> bool:
    """Whether two threads tuned one kernel at once, or the call failed for another's doing.

    A call of a thread that finds its config, while another one tunes for another key, takes the
    arguments away as well; as long as nobody reads them just then, nothing comes of it.
    """
    if tuning.error:
        return tuning.arguments in {"others", "gone"}
    return any(
        other.kernel == tuning.kernel and other.tid in tuning.met and _overlap(other, tuning)
        for other in timeline.tunings
    )


def _overlap(one: Tuning, other: Tuning) -> bool:
    ends = (one.t1 is None or one.t1 >= other.t0), (other.t1 is None or other.t1 >= one.t0)
    return all(ends)


def _failed(timeline: Timeline) -> list[_Failed]:
    found = []
    for case in signatures.cases(timeline, (_NOTHING_THERE,)):
        tuning = _tuning_of(timeline, case)
        if tuning is not None and tuning.arguments in {"others", "gone"}:
            others = tuning.met or tuple(signatures.alive(timeline, case))
            found.append(_Failed(case, tuning, others))
        elif tuning is None and _RAISED_THERE.fits(case.link):
            # A call that finds its config reads the arguments for a config's own hook.
            others = tuple(signatures.alive(timeline, case))
            found += [_Failed(case, None, others)] if others else []
    return found


def _tuning_of(timeline: Timeline, case: Case) -> Tuning | None:
    """The thread's last call that tuned a kernel and failed with the same words."""
    own = [
        tuning
        for tuning in timeline.tunings
        if tuning.tid == case.error.tid
        and tuning.t0 <= case.error.t
        and tuning.error
        and tuning.error in f"{case.link.type}: {case.link.message}"
    ]
    return max(own, key=lambda tuning: tuning.t0, default=None)


def _finding(timeline: Timeline, failed: Sequence[_Failed], met: Sequence[Tuning]) -> Found:
    tunings = list({id(t): t for t in (*(f.tuning for f in failed if f.tuning), *met)}.values())
    doers = [*(f.case.error.tid for f in failed), *(t.tid for t in met)]
    others = [*(tid for f in failed for tid in f.others), *(tid for t in met for tid in t.met)]
    seqs = frozenset(seq for tuning in tunings for seq in tuning.seqs)
    return Found(
        code="CR311",
        statements=(
            *(_died(timeline, each) for each in failed),
            *(_met(timeline, tuning) for tuning in tunings if tuning.met),
        ),
        headline=_headline(timeline, failed, met),
        explains=seqs | _explained(timeline, failed),
        threads=words.refs(timeline, [*doers, *others]),
        stacks=_stacks(timeline, failed, tunings),
        shared_state=SharedState(
            name=f"`nargs` of the autotuner of {_kernels(tunings)}",
            writer=f"{words.names(timeline, dict.fromkeys(others))}, putting arguments there and "
            "taking them away",
            reader=f"{words.names(timeline, dict.fromkeys(doers))}, trying configs with them",
        ),
    )


def _explained(timeline: Timeline, failed: Sequence[_Failed]) -> frozenset[int]:
    """Those errors, and what holds the same exceptions elsewhere."""
    numbers = {each.case.link.id for each in failed}
    return frozenset(error.seq for error in timeline.errors if error.ids & numbers)


def _headline(timeline: Timeline, failed: Sequence[_Failed], met: Sequence[Tuning]) -> str:
    tunings = [each.tuning for each in failed if each.tuning] or list(met)
    if failed:
        doers = [each.case.error.tid for each in failed]
        others = words.object_(timeline, (tid for each in failed for tid in each.others))
        return (
            f"{words.subject(timeline, doers, [])} failed in the first call of "
            f"{_kernels(tunings)}, because {others} called it meanwhile: triton's autotuner keeps "
            "the arguments of a call in one place for all threads."
        )
    doers = list(dict.fromkeys(tid for t in met for tid in (t.tid, *t.met)))
    return (
        f"{words.subject(timeline, doers, [])} tuned {_kernels(met)} at the same time: triton's "
        "autotuner keeps the arguments of a call in one place for all threads, so that each reads "
        "the other's, or none."
    )


def _died(timeline: Timeline, each: _Failed) -> Statement:
    said = signatures.statement(timeline, each.case, also=f", in a call of `{_FILE}`")
    if each.tuning is None:
        others = words.names(timeline, each.others)
        text = f"{said.text} {words.begin(others)} ran at that time; whether in a call of the same "
        return Statement(f"{text}kernel is not recorded.", "inferred", said.evidence)
    held = {"gone": "none any more", "others": "another call's"}[each.tuning.arguments]
    return Statement(
        f"{said.text} It was tuning `{each.tuning.name}`, whose autotuner should have held the "
        f"call's arguments and held {held}.",
        "observed",
        words.seqs(said.evidence, each.tuning.seqs),
    )


def _met(timeline: Timeline, tuning: Tuning) -> Statement:
    text = (
        f"While `{timeline.name(tuning.tid)}` tuned `{tuning.name}`, "
        f"{words.object_(timeline, tuning.met)} called the same kernel."
    )
    return Statement(text, "observed", words.seqs(tuning.seqs))


def _kernels(tunings: Sequence[Tuning]) -> str:
    names = dict.fromkeys(f"`{tuning.name}`" for tuning in tunings if tuning.name)
    return words.listing(names) if names else "an autotuned kernel"


def _stacks(
    timeline: Timeline, failed: Sequence[_Failed], tunings: Sequence[Tuning]
) -> tuple[Stack, ...]:
    died = signatures.stacks(timeline, [each.case for each in failed], limit=1)
    shown = {stack.thread.tid for stack in died}
    others = [t for t in tunings if words.ref(timeline, t.tid).tid not in shown and t.where]
    tuned = (
        words.stack(timeline, t.tid, "tuned the kernel", t.where, t.seqs[0])
        for t in others[: 2 - len(died)]
    )
    return (*died, *tuned)
