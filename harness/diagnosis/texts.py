"""What is different where a recording was made from texts: doubts, and what would settle them."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from harness.causes import messages, rings, words
from harness.causes.base import Found, Outcome
from harness.causes.endings import open_waits, waiting
from harness.diagnosis.report import NotWatched
from harness.logs.compiles import UNNAMED
from harness.statements import Note, Statement
from harness.timeline.timeline import Timeline

WATCH = "python -m harness.watch --"
_PROGRAM = "your_program.py"
ALSO = {
    "CR101": (
        "Inference mode (CR102) gives the same reason, since it switches gradients off: whether "
        "either side was in it is not told."
    ),
    "CR601": "Whether the tensor was one on the CPU is not told.",
}
"""What else a cause's text can mean."""
BY_GUARDS = ("CR1", "CR2", "CR303")
OF_GUARDS = (
    "Which thread made which call is not known: the text names none. That others than the one that "
    "compiled first are concerned is taken from the guards alone, unless a stack or a name says it."
)
OF_ONE = "Which thread it was is not known: the text names none."
FOLLOWS = {"CR402": ("CR401",)}
"""What follows from what without an event in common: memory that dense attention ran out of."""
HANG = ("CR307", "CR903")
"""The causes of a hang, the first that exists is meant."""


def ask(
    timeline: Timeline, code: str, outcome: Outcome, earlier: Sequence[Found], codes: Sequence[str]
) -> Outcome:
    """What a cause makes of texts: its own findings, or else those by messages, with their doubts.

    Args:
        timeline: made from texts.
        code: the cause's.
        outcome: what the cause itself found.
        earlier: findings of the causes before it.
        codes: every cause's code.
    """
    found = list(outcome.found) or messages.find(timeline, code, earlier)
    if not found and code == next((each for each in HANG if each in codes), ""):
        found = _hang(timeline, code)
    doubted = [_doubted(timeline, _following(each, earlier)) for each in found]
    return Outcome(found=doubted, notes=outcome.notes)


def _following(found: Found, earlier: Sequence[Found]) -> Found:
    """The finding as what follows from an earlier one, where the two messages are of one thing."""
    causes = FOLLOWS.get(found.code, ())
    because = frozenset[int]().union(*(e.explains for e in earlier if e.code in causes))
    return replace(found, because=found.because | because)


def _doubted(timeline: Timeline, found: Found) -> Found:
    """The finding with what texts leave open; what joins several lines is inferred."""
    statements = tuple(
        msgspec.structs.replace(each, certainty="inferred")
        if each.certainty == "observed" and len(_lines(timeline, each)) > 1
        else each
        for each in found.statements
    )
    unnamed = [ref.name for ref in found.threads if ref.name.startswith(UNNAMED)]
    if unnamed:
        text = OF_GUARDS if found.code.startswith(BY_GUARDS) else OF_ONE
        statements = (*statements, Statement(text, "unknown", found.statements[0].evidence))
    if found.code in ALSO:
        also = Statement(ALSO[found.code], "unknown", found.statements[0].evidence)
        statements = (*statements, also)
    return replace(found, statements=statements)


def _lines(timeline: Timeline, said: Statement) -> set[str]:
    """The lines that a statement rests on; several events can have been read from one."""
    return {timeline.sources.get(seq, "") for seq in said.evidence}


def _hang(timeline: Timeline, code: str) -> list[Found]:
    """Threads that wait for the compile lock, while whoever has it waits too."""
    waits, ended = open_waits(timeline), timeline.ended
    if not waits or ended is None:
        return []
    idle = {wait.tid for wait in ended.waits} | {w.thread for w in ended.waits}
    stuck = [w for w in waits if w.owner in idle or timeline.name(w.owner or 0) in idle]
    if not stuck:
        return []
    ring = rings.ring(timeline, ended)
    names = words.names(timeline, (wait.tid for wait in stuck))
    owner = timeline.name(stuck[0].owner or 0)
    open_ = timeline.open_compiles()
    statements = (
        Statement(
            f"{names} waited for dynamo's compile lock while `{owner}`, inside a compile, did not "
            "run either.",
            "inferred",
            words.seqs(*(wait.seqs for wait in stuck), *(c.seqs for c in open_)),
        ),
        *([rings.statement(ring)] if ring else []),
        *waiting(timeline, ended),
        Statement(
            "One dump shows a moment: that nothing moved any more is known only if a second one, "
            "taken later, shows the same.",
            "unknown",
        ),
    )
    return [
        Found(
            code=code,
            statements=statements,
            headline=(
                f"{names} waited for dynamo's compile lock, which `{owner}` held inside a compile "
                "while it waited itself."
            ),
            threads=words.refs(
                timeline, [w for wait in stuck for w in (wait.tid, wait.owner or 0)]
            ),
            stacks=tuple(
                words.stack(timeline, c.tid, "was compiling", c.where, c.seqs[0]) for c in open_[:1]
            ),
        )
    ]


def notes(timeline: Timeline) -> list[Note]:
    """Lines that say something and are evidence of nothing by themselves."""
    breaks = [line for line in timeline.said if line.text.startswith("Graph break")]
    found = []
    if breaks:
        text = f"{words.count(len(breaks), 'graph break')}, the first: {breaks[0].text}"
        found.append(Note(text=text, pid=timeline.pid, evidence=words.seqs(b.seq for b in breaks)))
    ended = timeline.ended
    if ended is not None and ended.waits and not open_waits(timeline):
        found += [
            Note(text=each.text, certainty=each.certainty, pid=timeline.pid)
            for each in waiting(timeline, ended)
        ]
    return found


def gaps(timelines: Sequence[Timeline], replay: str) -> list[NotWatched]:
    """That the program was not watched, and the captures that settle what texts leave open."""
    command = replay or f"{WATCH} {_PROGRAM}"
    program = command.partition(f"{WATCH} ")[2] or _PROGRAM
    found = [
        NotWatched(
            name="the program",
            state="not watched",
            reason=f"only what the texts say is known. This settles the rest: {command}",
        )
    ]
    found += [
        NotWatched(
            name=kind,
            state="left out",
            reason=f"{number:,} more of process {timeline.pid} are like others, or too many",
            decisive=False,
        )
        for timeline in timelines
        for kind, number in sorted(timeline.left_out.items())
    ]
    compiles = any(True for timeline in timelines for _ in timeline.compiles())
    if not compiles:
        reason = (
            "no text says what was compiled when. Without the harness: "
            f"TORCH_LOGS=recompiles,guards TORCH_TRACE=trace python {program} 2> log.txt, and then "
            "python -m harness.diagnose log.txt trace"
        )
        found.append(NotWatched(name="compiles", state="not told", reason=reason, decisive=False))
    if not any(timeline.ended for timeline in timelines):
        reason = (
            "no text says how the process ended or what its threads stood in. While it hangs: "
            "py-spy dump --pid PID > dump.txt; where it crashes: "
            f"PYTHONFAULTHANDLER=1 python {program} 2> log.txt"
        )
        found.append(
            NotWatched(name="the program's end", state="not told", reason=reason, decisive=False)
        )
    return found
