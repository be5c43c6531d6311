"""The verdict of a run, and the exit code that it stands for."""

from collections.abc import Sequence

from harness.diagnosis.report import Finding, NotWatched, Verdict
from harness.events.ended import Ended
from harness.exits import ExitCode

EXIT_CODES: dict[Verdict, ExitCode] = {
    "clean": ExitCode.CLEAN,
    "found": ExitCode.FOUND,
    "failed": ExitCode.FAILED,
    "incomplete": ExitCode.INCOMPLETE,
    "nothing ran": ExitCode.NOTHING_RAN,
}


def decide(
    *,
    readable: bool,
    findings: Sequence[Finding],
    gaps: Sequence[NotWatched],
    unmet: Sequence[NotWatched],
    compiled_calls: int,
    interrupted: bool = False,
) -> Verdict:
    """What a run comes to: failed over found over incomplete over clean.

    Args:
        readable: something of the recording could be read.
        findings: what was found.
        gaps: what was not watched.
        unmet: expectations that were not met.
        compiled_calls: threads in which a call of compiled code was seen.
        interrupted: the run was interrupted before the watch was in the program, which is then no
            failure of the watch's.
    """
    if not readable:
        return "incomplete" if interrupted else "failed"
    if findings:
        return "found"
    if any(gap.decisive for gap in gaps):
        return "incomplete"
    if not compiled_calls:
        return "nothing ran"
    return "incomplete" if unmet else "clean"


def exit_code(verdict: Verdict, ended: Ended | None) -> ExitCode:
    """The exit code for a verdict; an interrupted run keeps its own unless the harness failed."""
    if ended is not None and ended.interrupted and verdict != "failed":
        return ExitCode.INTERRUPTED
    return EXIT_CODES[verdict]
