"""CR207: a backward graph compiled in another thread than its forward."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Certainty, Remedy, Statement
from harness.timeline.cold import cold_started
from harness.timeline.history import CodeHistory
from harness.timeline.model import BackwardCompile, Compile
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR207",
    title="backward-not-warmed",
    what=(
        "The warm-up ran the forward only. The first backward in a worker thread then compiles the "
        "backward graph there, in the middle of the run."
    ),
    why=(
        "AOTAutograd compiles a backward graph when it is first needed, unless it had to trace it "
        "with symbolic sizes saved for it. A forward with gradients on is therefore not a whole "
        "warm-up. On CUDA the compile runs on autograd's device thread whoever called, so what "
        "counts is on whose behalf it runs, not where."
    ),
    evidence=(
        "A lazy backward compile in a thread, or on behalf of exactly one, whose forward was "
        "compiled in another thread."
    ),
    remedy=Remedy(
        text="Call backward in the warm-up too, for every device and length.",
        snippet=(
            "loss = compiled(batch).float().sum()\n"
            "loss.backward()\n"
            "model.zero_grad(set_to_none=True)"
        ),
        seen_to_work="torch 2.11.0 on CUDA, torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "backward"),
    may_follow=("CR1", "CR201", "CR202", "CR204", "CR208"),
)


@dataclass(frozen=True)
class _Instance:
    backward: BackwardCompile
    forward: Compile
    tids: tuple[int, ...]
    certainty: Certainty


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Backward compiles on behalf of another thread than the one that compiled the forward."""
    found = [i for b in timeline.backward_compiles if (i := _instance(b)) is not None]
    return Outcome(found=[_finding(timeline, found)] if found else [])


def _instance(backward: BackwardCompile) -> _Instance | None:
    forward = backward.forward
    if forward is None or forward.code.internal:
        return None
    tids = backward.behalf
    if not tids or backward.tid in tids:
        tids = (backward.tid,)
    # Where the forward's thread is among the candidates it may well be the caller.
    if forward.tid in tids:
        return None
    return _Instance(backward, forward, tids, "observed" if len(tids) == 1 else "inferred")


def _finding(timeline: Timeline, found: Sequence[_Instance]) -> Found:
    forwards = {id(i.forward): i.forward for i in found}.values()
    codes = dict.fromkeys(forward.code.id for forward in forwards)
    histories = [timeline.codes[number] for number in codes if number in timeline.codes]
    tids = list(dict.fromkeys(tid for i in found for tid in i.tids))
    certain = [i for i in found if i.certainty == "observed"]
    first = (certain or list(found))[0]
    named = words.codes(forward.code for forward in forwards)
    makers = words.names(timeline, (forward.tid for forward in forwards))
    return Found(
        code="CR207",
        statements=tuple(_statement(timeline, i) for i in found[: words.NAMES_SHOWN]),
        headline=(
            f"{_who(timeline, found, histories, named)} in the middle of the run: {makers} "
            f"compiled the forward and {_no_backward(timeline, found)}."
        ),
        explains=frozenset(seq for i in found for seq in i.backward.seqs),
        because=frozenset(seq for i in found for seq in i.forward.seqs),
        independent=any(_in_warmup(timeline, i.forward) for i in found),
        threads=words.refs(timeline, tids),
        stacks=(
            words.stack(
                timeline,
                first.forward.tid,
                "compiled the forward",
                first.forward.where,
                first.forward.seqs[0],
            ),
            words.stack(
                timeline,
                first.backward.tid,
                "compiled the backward",
                first.backward.where,
                first.backward.seqs[0],
            ),
        ),
    )


def _no_backward(timeline: Timeline, found: Sequence[_Instance]) -> str:
    if timeline.saw_all(max(seq for i in found for seq in i.backward.seqs)):
        return "called no backward with it"
    return "no backward of theirs is recorded (events are missing)"


def _who(
    timeline: Timeline,
    found: Sequence[_Instance],
    histories: Sequence[CodeHistory],
    codes: str,
) -> str:
    tids = list(dict.fromkeys(tid for i in found for tid in i.tids))
    if all(i.certainty == "observed" for i in found):
        return f"{words.subject(timeline, tids, histories)} compiled the backward of {codes}"
    # Fewer may have called than are candidates, so no number of threads can be given.
    return f"The backward of {codes} was compiled on behalf of {words.names(timeline, tids, 'or')}"


def _in_warmup(timeline: Timeline, forward: Compile) -> bool:
    """Whether the forward was compiled before anybody else called it: there was a warm-up."""
    history = timeline.codes.get(forward.code.id)
    return history is not None and not cold_started(history) and history.made_in_warmup(forward)


def _statement(timeline: Timeline, instance: _Instance) -> Statement:
    backward, forward = instance.backward, instance.forward
    where = f"`{timeline.name(backward.tid)}`"
    if backward.tid not in instance.tids:
        who = "one of " if len(instance.tids) > 1 else ""
        where += f", autograd's thread, on behalf of {who}{words.names(timeline, instance.tids)}"
    seconds = "" if backward.t1 is None else f" ({(backward.t1 - backward.t0) / 1e9:.2f} s)"
    text = (
        f"The backward of `{forward.code.name}` [{backward.compile_id}] was compiled in {where}"
        f"{seconds}; its forward was compiled in `{timeline.name(forward.tid)}`."
    )
    return Statement(text, instance.certainty, words.seqs(backward.seqs, forward.seqs))
