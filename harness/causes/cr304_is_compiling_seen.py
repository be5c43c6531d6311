"""CR304: code outside the compiler read ``torch.compiler.is_compiling()`` as True."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile, CompilingRead
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR304",
    title="is-compiling-seen-by-another-thread",
    what=(
        "Eager code that asks `torch.compiler.is_compiling()` gets True while another thread "
        "compiles, and takes the branch that was meant for tracing: no error, but other code runs."
    ),
    why=(
        "From torch 2.13 on a dynamo compile holds `torch.compiler._is_compiling_flag` from its "
        "beginning to its end, so that what runs below it can see it. The flag is one for the "
        "process, so every other thread sees it too."
    ),
    evidence=(
        "A thread that was inside no compile and no trace read True, in code outside torch, while "
        "another thread was inside a dynamo compile. Reads by torch's own code are not counted."
    ),
    remedy=Remedy(
        text=(
            "Do not branch on `torch.compiler.is_compiling()` in code that also runs uncompiled in "
            "threads: `torch.compiler.is_dynamo_compiling()` is a constant outside a trace. Or "
            "warm up so that nothing compiles while threads run."
        ),
        snippet="tracing = torch.compiler.is_dynamo_compiling()   # False in eager code",
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="2.13 and newer (up to 2.12 no compile sets the flag)",
    upstream=("pytorch/pytorch#184614",),
    needs=("is_compiling", "compiles"),
    may_follow=("CR1", "CR2", "CR303"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Reads that another thread's compile answered."""
    reads = [read for read in timeline.compiling_reads if read.compiling]
    return Outcome(found=[_finding(timeline, reads)] if reads else [])


def _compiles_of(timeline: Timeline, read: CompilingRead) -> list[Compile]:
    near = timeline.compiling_at(read.t, other_than=read.tid)
    return [c for c in near if c.on in read.compiling]


def _finding(timeline: Timeline, reads: Sequence[CompilingRead]) -> Found:
    tids = list(dict.fromkeys(read.tid for read in reads))
    compiles = [c for read in reads for c in _compiles_of(timeline, read)]
    others = list(dict.fromkeys(tid for read in reads for tid in read.compiling))
    what = words.codes(compile_.code for compile_ in compiles)
    compiled = f"compiled {what}" if what else "compiled"
    number = sum(read.times for read in reads)
    text = (
        f"{words.begin(words.object_(timeline, tids))} read `torch.compiler.is_compiling()` as "
        f"True outside any compile ({words.count(number, 'recorded read')}), while "
        f"{words.names(timeline, others)} {compiled}."
    )
    evidence = words.seqs((r.seq for r in reads), *(c.seqs for c in compiles))
    stacks = [words.stack(timeline, r.tid, "read the flag", r.where, r.seq) for r in reads[:1]]
    stacks += [
        words.stack(timeline, c.on, "was compiling", c.where, c.seqs[0]) for c in compiles[:1]
    ]
    return Found(
        code="CR304",
        statements=(Statement(text, "observed", evidence),),
        headline=(
            f"{words.subject(timeline, tids, [])} read `torch.compiler.is_compiling()` as True in "
            f"eager code because {words.names(timeline, others)} {compiled} meanwhile: from torch "
            "2.13 on that flag is one for the process."
        ),
        explains=frozenset(read.seq for read in reads),
        because=frozenset(seq for c in compiles for seq in c.seqs),
        threads=words.refs(timeline, [*tids, *others]),
        stacks=tuple(stacks),
        shared_state=SharedState(
            name="torch.compiler._is_compiling_flag",
            writer=f"{words.names(timeline, others)}, inside a dynamo compile",
            reader=f"{words.names(timeline, tids)}, in eager code",
        ),
    )
