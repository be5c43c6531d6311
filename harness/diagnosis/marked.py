"""What happened after the program had said, by ``harness.warmup_done()``, that it was warmed up."""

from collections.abc import Iterator, Sequence

from harness.causes import words
from harness.diagnosis.report import AfterWarmup
from harness.statements import Note
from harness.timeline.timeline import Timeline


def after_warmup(timelines: Sequence[Timeline]) -> AfterWarmup | None:
    """What was compiled or ran eager after that; None if no process said so."""
    marked = [timeline for timeline in timelines if timeline.warmup_done is not None]
    if not marked:
        return None
    return AfterWarmup(
        compiles=sum(h.compiles_after_warmup() for t in marked for h in t.program_codes()),
        fallbacks=sum(call.times for t in marked for call in t.dense if call.t >= _end(t)),
        eager=sum(call.times for t in marked for call in t.eager if call.t >= _end(t)),
    )


def notes(timeline: Timeline) -> Iterator[Note]:
    """The same as a note, for a process that said so and went on compiling."""
    found = after_warmup([timeline])
    if found is None or found == AfterWarmup():
        return
    end = _end(timeline)
    late = [c for c in timeline.compiles() if c.t0 >= end]
    of = f" of {words.codes(compile_.code for compile_ in late)}" if late else ""
    parts = [
        f"{words.count(found.compiles, 'compile')}{of}" if found.compiles else "",
        f"{words.count(found.fallbacks, 'call')} or more of dense attention outside a compiled "
        "frame"
        if found.fallbacks
        else "",
        f"{words.count(found.eager, 'call')} or more that ran eager" if found.eager else "",
    ]
    seqs = [compile_.seqs[0] for compile_ in late]
    seqs += [call.seq for call in timeline.dense if call.t >= end]
    seqs += [call.seq for call in timeline.eager if call.t >= end]
    yield Note(
        text=(
            "After the program had said that its warm-up was over it came to "
            f"{words.listing(filter(None, parts))}."
        ),
        pid=timeline.pid,
        evidence=words.seqs(seqs),
    )


def _end(timeline: Timeline) -> int:
    assert timeline.warmup_done is not None
    return timeline.warmup_done[0]
