"""What the gate takes from a run's report: its result, its sentence and the program's frames."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from harness.diagnosis.report import Report, loads
from harness.events.files import read_whole
from harness.events.values import Frame
from harness.gating.machine import neighbour
from harness.render import file_name

_FRAMES = 5


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """``result``: ``clean``, the roots such as ``CR101+CR301``, or the verdict.

    ``explain``: the roots' titles. ``fault``: what of the machine's may account for it.
    """

    result: str
    headline: str
    frames: tuple[Frame, ...]
    replay: str
    folder: Path
    explain: str = ""
    fault: str = ""


def reports_below(folder: Path) -> list[Path]:
    """The reports of all run folders below, the oldest first."""
    return sorted(folder.rglob(file_name("json")), key=lambda path: path.stat().st_mtime)


def diagnosed(path: Path, busy_gib: float) -> Diagnosed | None:
    """Read a report; None if it is none.

    Args:
        path: a ``report.json``.
        busy_gib: so much of a GPU's memory in use is no neighbour's.
    """
    try:
        report = loads(read_whole(path))
    except (OSError, msgspec.DecodeError):
        return None
    fault = neighbour(report, busy_gib)
    if report.ended is not None and report.ended.disk_full:
        fault = f"disk full: the program could write nothing more to {path.parent}"
    roots = [finding for finding in report.findings if finding.root]
    codes = sorted({root.code for root in roots})
    return Diagnosed(
        result="+".join(codes) if report.verdict == "found" else report.verdict,
        headline=report.headline,
        frames=tuple(_frames(report))[:_FRAMES],
        replay=report.replay,
        folder=path.parent,
        explain=", ".join(dict.fromkeys(f"{root.code} {root.title}" for root in roots)),
        fault=fault,
    )


def _frames(report: Report) -> Iterator[Frame]:
    """The program's own frames, innermost first: of roots, then of errors, then what compiled."""
    seen: set[tuple[str, int]] = set()
    for frame in (*_stacked(report), *_raised(report), *_compiled(report)):
        place = (frame.file, frame.line)
        if frame.user and place not in seen and not frame.file.startswith("<"):
            seen.add(place)
            yield frame


def _stacked(report: Report) -> Sequence[Frame]:
    return [f for finding in report.findings for stack in finding.stacks for f in stack.frames]


def _raised(report: Report) -> Sequence[Frame]:
    return [f for error in report.errors for f in reversed(error.chain[0].frames)]


def _compiled(report: Report) -> Sequence[Frame]:
    codes = [covered.code for covered in report.coverage]
    return [Frame(code.file, code.line, code.name, user=True) for code in codes]
