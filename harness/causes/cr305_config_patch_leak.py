"""CR305: ``torch.compile(dynamic=...)`` of one thread's call undone by another thread's."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import versions, words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR305",
    title="config-patch-leak",
    what=(
        "Code compiled with `torch.compile(dynamic=True)` gets an entry for static sizes in a "
        "thread (or the reverse), so that the next length compiles again; or a function without "
        "that option is compiled as if it had it."
    ),
    why=(
        "`dynamic=` patches `torch._dynamo.config` at each call's beginning and puts back at its "
        "end what it found. Up to torch 2.11 that config is one for the process: the end of one "
        "thread's call puts back the default in the middle of another one's, or puts back the "
        "other's patch for good."
    ),
    evidence=(
        "A compile for which `dynamic=` was given, and that ran with `assume_static_by_default` or "
        "`automatic_dynamic_shapes` at another value, while another thread used the option; or one "
        "for which it was not given, with a value that only the option sets in this program."
    ),
    remedy=Remedy(
        text=(
            "Use torch 2.12 or newer, where the config is per thread; or leave `dynamic=` out and "
            "mark the dimensions of the tensors themselves; or warm up, backward included, before "
            "the threads start, so that none compiles."
        ),
        snippet="torch._dynamo.mark_dynamic(x, 0)\ntorch.compile(f)(x)",
        seen_to_work="torch 2.11.0 on CPU",
    ),
    versions="up to 2.11",
    upstream=(
        "pytorch/pytorch#118260",
        "pytorch/pytorch#118387",
        "pytorch/pytorch#111150",
    ),
    needs=("compiles", "wrapper"),
    may_follow=("CR1", "CR2", "CR303"),
)

STATIC, AUTOMATIC = "assume_static_by_default", "automatic_dynamic_shapes"
# What dynamic= sets (torch/_dynamo/eval_frame.py, make_set_enable_dynamic, of 2.11); both are True
# by default.
_ASKED: dict[str, dict[str, bool]] = {
    "on": {STATIC: False},
    "off": {STATIC: True, AUTOMATIC: False},
}
_OPTION = {"on": "dynamic=True", "off": "dynamic=False", "automatic": "no `dynamic=`"}


@dataclass(frozen=True)
class _Leak:
    """A compile that ran with ``name`` at ``value``, which is not what was asked for."""

    compile: Compile
    name: str
    value: bool
    others: tuple[int, ...]


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Compiles that ran under another option than their own."""
    if timeline.torch == versions.UNKNOWN or timeline.torch >= versions.CONFIG_PER_THREAD:
        return Outcome()
    leaks = [leak for c in timeline.compiles() if (leak := _leak(timeline, c)) is not None]
    return Outcome(found=[_finding(timeline, leaks)] if leaks else [])


def _leak(timeline: Timeline, compile_: Compile) -> _Leak | None:
    if compile_.context is None or not compile_.dynamic:
        return None
    others = _using_it(timeline, compile_)
    if not others:
        return None
    values = {name: _value(compile_.context.config, name) for name in (STATIC, AUTOMATIC)}
    asked = _ASKED.get(compile_.dynamic)
    if asked is None:
        asked = {name: True for name in values if not _is_set_by_the_program(timeline, name)}
    wrong = [name for name, wanted in asked.items() if values[name] != wanted]
    return _Leak(compile_, wrong[0], values[wrong[0]], others) if wrong else None


def _using_it(timeline: Timeline, compile_: Compile) -> tuple[int, ...]:
    """Other threads that called code for which ``dynamic=`` was given."""
    found: dict[int, None] = {}
    for history in timeline.program_codes():
        if any(c.dynamic in _ASKED for c in history.compiles):
            found |= dict.fromkeys(history.sightings)
    return tuple(tid for tid in found if tid not in {compile_.tid, compile_.on})


def _is_set_by_the_program(timeline: Timeline, name: str) -> bool:
    """Whether a thread found it at another value than the default when it first called."""
    contexts = (thread.context for thread in timeline.threads.values())
    return any(context is not None and not _value(context.config, name) for context in contexts)


def _value(config: dict[str, bool | int | float | str | None], name: str) -> bool:
    return bool(config.get(name, True))


def _finding(timeline: Timeline, leaks: Sequence[_Leak]) -> Found:
    first = leaks[0]
    tids = list(dict.fromkeys(leak.compile.tid for leak in leaks))
    others = list(dict.fromkeys(tid for leak in leaks for tid in leak.others))
    seqs = frozenset(seq for leak in leaks for seq in leak.compile.seqs)
    name = first.compile.code.name
    return Found(
        code="CR305",
        statements=(
            *(_ran(timeline, leak) for leak in leaks),
            Statement(
                f"{words.begin(words.object_(timeline, others))} called code with the option in "
                "the same process: up to torch 2.11 the end of such a call puts the config of all "
                "threads back to what it found.",
                "inferred",
                words.seqs(seqs),
            ),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} compiled `{name}`, for which "
            f"{_given(first)}, with `{first.name}` at {first.value}: another thread's call had "
            "changed `torch._dynamo.config`, which up to torch 2.11 is one for the process."
        ),
        explains=seqs,
        because=seqs,
        threads=words.refs(timeline, [*tids, *others]),
        stacks=tuple(
            words.stack(
                timeline,
                leak.compile.on,
                "compiled it under another option",
                leak.compile.where,
                leak.compile.seqs[0],
            )
            for leak in leaks[:2]
        ),
        shared_state=SharedState(
            name=f"torch._dynamo.config.{first.name}",
            writer=f"{words.names(timeline, others)}, at the beginning and end of calls",
            reader=f"{words.names(timeline, tids)}, compiling",
        ),
    )


def _given(leak: _Leak) -> str:
    asked = leak.compile.dynamic
    return f"`{_OPTION[asked]}` was given" if asked in _ASKED else f"{_OPTION[asked]} was given"


def _ran(timeline: Timeline, leak: _Leak) -> Statement:
    compile_ = leak.compile
    number = f" [{compile_.compile_id}]" if compile_.compile_id else ""
    text = (
        f"`{timeline.name(compile_.on)}` compiled `{compile_.code.name}`{number} with "
        f"`torch._dynamo.config.{leak.name}` at {leak.value}, although {_given(leak)}."
    )
    return Statement(text, "observed", words.seqs(compile_.seqs[:1]))
