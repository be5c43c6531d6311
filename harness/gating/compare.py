"""What was measured, compared with the baseline; no process, no file."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from harness.events.values import Frame
from harness.exits import ExitCode
from harness.gating.baseline import BaselineEntry, Key

Status = Literal["same", "regressed", "improved", "expired", "incomplete", "not run"]
FAILURES: tuple[Status, ...] = ("regressed", "improved", "expired")

HUNG, ABORTED, SKIPPED, NOT_RUN = "hung", "aborted", "skipped", "not run"
INCOMPLETE, FAILED, NOTHING = "incomplete", "the harness failed", "nothing ran"
_UNDECIDED: dict[str, Status] = {
    HUNG: "incomplete",
    INCOMPLETE: "incomplete",
    FAILED: "incomplete",
    NOTHING: "not run",
    NOT_RUN: "not run",
}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One result.

    Attributes:
        key: what it is a result of.
        right: the result that is right.
        result: what came: ``passed``, ``clean``, ``CR101``, ``aborted``, ``hung``, ...
        run: which of the entry's runs, from 1.
        said: what happened, in a sentence.
        detail: text for whoever looks closer: a traceback, stacks.
        frames: the program's own frames that it is about, the first one first.
        reproduce: the command that does it again.
        fault: the fault of the machine that may account for it; empty: none was seen.
        folder: where its files are, below the gate's folder.
        seconds: how long it took.
        ratio, noise: of a performance entry: b's figure in a's, and by what share a's figures
            differ from each other.
    """

    key: Key
    right: str
    result: str
    run: int = 1
    said: str = ""
    detail: str = ""
    frames: tuple[Frame, ...] = ()
    reproduce: str = ""
    fault: str = ""
    folder: str = ""
    seconds: float = 0.0
    ratio: float | None = None
    noise: float | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A result with its status. ``was``: what the baseline, or else the suite, has.

    ``since``: when it was last seen as it should be; ``because``: why it has the status.
    """

    status: Status
    measured: Measured
    was: str
    because: str = ""
    since: str = ""
    known: bool = False


def judge(measured: Measured, entry: BaselineEntry | None, today: dt.date) -> Judged:
    """Compare a result with its entry in the baseline, or else with what the suite expects."""
    if entry is not None and entry.ratio is not None and measured.ratio is not None:
        return _performance(measured, entry, today)
    was = measured.right if entry is None else entry.result
    status, because = _status(measured, entry, was, today)
    return Judged(
        status=status,
        measured=measured,
        was=was,
        because=because,
        since=_since(entry),
        known=entry is not None,
    )


def _status(
    measured: Measured, entry: BaselineEntry | None, was: str, today: dt.date
) -> tuple[Status, str]:
    result = measured.result
    if result in _UNDECIDED:
        return _UNDECIDED[result], measured.fault or measured.said or result
    if result == was:
        expired = _expired(entry, today)
        return ("expired", expired) if expired else ("same", "")
    if measured.fault:
        return "incomplete", measured.fault
    if result == SKIPPED:
        return "not run", f"it was skipped: {measured.said}"
    if entry is not None and result == measured.right:
        return "improved", f"it is {result} now: remove its entry, known as {was}"
    return "regressed", f"it was {was} and is {result}"


def _expired(entry: BaselineEntry | None, today: dt.date) -> str:
    if entry is None or entry.expires is None or today < entry.expires:
        return ""
    upstream = f": look at {entry.upstream}" if entry.upstream else ""
    return f"its entry held until {entry.expires}{upstream}"


def _performance(measured: Measured, entry: BaselineEntry, today: dt.date) -> Judged:
    """A ratio within its tolerance is the same.

    One that is outside, though a's own figures differed by more than that meanwhile, says nothing.
    """
    assert entry.ratio is not None
    assert measured.ratio is not None
    tolerance, noise = entry.tolerance or 0.0, measured.noise or 0.0
    off = measured.ratio / entry.ratio - 1
    said = (
        f"{measured.ratio:.3f} instead of {entry.ratio:.3f} ± {tolerance:.0%}; a against a "
        f"differed by {noise:.0%}"
    )
    status: Status = "same"
    if measured.fault and abs(off) > tolerance:
        status, said = "incomplete", measured.fault
    elif abs(off) > tolerance:
        status = "incomplete" if abs(off) <= noise else "regressed" if off > 0 else "improved"
    elif expired := _expired(entry, today):
        status, said = "expired", expired
    return Judged(
        status=status,
        measured=measured,
        was=f"{entry.ratio:.3f}",
        because=said,
        since=_since(entry),
        known=True,
    )


def _since(entry: BaselineEntry | None) -> str:
    """When the baseline's result was last seen: what broke, broke after that."""
    if entry is None or entry.recorded is None:
        return ""
    return f"{entry.recorded}{f' ({entry.commit[:12]})' if entry.commit else ''}"


def missing(
    measured: Sequence[Measured],
    ran: Mapping[str, str],
    entries: Mapping[Key, BaselineEntry],
    *,
    every: bool,
) -> list[Judged]:
    """Entries of the baseline of which no result came.

    Args:
        measured: all results.
        ran: what was run: scenario to what is right; its torch and device are those of results.
        entries: the baseline of this torch and these devices.
        every: the whole suite was run, so that an entry of no scenario of its is left over.
    """
    seen = {result.key for result in measured}
    found = []
    for key, entry in entries.items():
        if key in seen or (key.scenario not in ran and not every):
            continue
        because = (
            "no result came of it"
            if key.scenario in ran
            else "the suite has no such scenario: remove its entry"
        )
        result = Measured(key=key, right=ran.get(key.scenario, entry.result), result=NOT_RUN)
        found.append(
            Judged(
                status="not run",
                measured=result,
                was=entry.result,
                because=because,
                since=_since(entry),
                known=True,
            )
        )
    return found


def exit_code(judged: Sequence[Judged]) -> ExitCode:
    """The gate's exit code: 3 over 1 over 4 over 5 over 0; never 0 if nothing was compared."""
    ran = [j for j in judged if j.measured.result not in {SKIPPED, NOT_RUN, NOTHING}]
    if any(j.measured.result == FAILED and not j.measured.fault for j in judged):
        return ExitCode.FAILED
    if any(j.status in FAILURES for j in judged):
        return ExitCode.FOUND
    if not ran:
        return ExitCode.NOTHING_RAN
    if any(j.status != "same" for j in judged):
        return ExitCode.INCOMPLETE
    return ExitCode.CLEAN
