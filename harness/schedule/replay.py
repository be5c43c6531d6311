"""Holds a run against the schedule that it was to follow, step by step."""

from collections.abc import Sequence

import msgspec

from harness.child.schedule.order import MAIN
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.expect import decide_exit
from harness.schedule.plan import Plan, Schedule
from harness.timeline import lives
from harness.timeline.model import HoldPass
from harness.timeline.timeline import Timeline

DID_NOT_REPRODUCE = "did not reproduce"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step that was not as it should have been.

    Attributes:
        number: which hold, counted from 1.
        expected: the hold; empty if there should have been none.
        got: what was passed instead; empty if nothing was.
        thread: the name of the thread that came, or should have come, as far as it is known.
        reason: what is wrong, in words.
        evidence: seq of the pass; 0 if there was none.
    """

    number: int
    expected: str
    got: str
    thread: str
    reason: str
    evidence: int = 0

    @property
    def said(self) -> str:
        """One line."""
        who = f" in thread {self.thread}" if self.thread else ""
        what = self.expected or self.got
        return f"{DID_NOT_REPRODUCE}: hold {self.number}, {what},{who} {self.reason}"


def first_difference(schedule: Schedule, timeline: Timeline | None) -> Difference | None:
    """The first step at which a run left its schedule; None if it followed it to the end.

    Random priorities and delays have no steps to follow: nothing is checked for them but that the
    process had them.
    """
    holds = schedule.texts if isinstance(schedule, Plan) else ()
    asked = bool(holds) or not isinstance(schedule, Plan)
    if timeline is None or (asked and timeline.schedule is None):
        return Difference(
            number=1,
            expected=holds[0] if holds else str(schedule),
            got="",
            thread="",
            reason="was never set up: the run's process had no schedule",
        )
    parts: dict[str, int] = {}
    for number, expected in enumerate(holds):
        passed = timeline.passes[number] if number < len(timeline.passes) else None
        if passed is None:
            return _missing(number, expected, timeline, parts)
        reason = _wrong(expected, passed, timeline, parts)
        if reason:
            return _differs(number, expected, passed, timeline, reason)
    if len(timeline.passes) > len(holds):
        extra = timeline.passes[len(holds)]
        return _differs(len(holds), "", extra, timeline, "was passed beyond the end")
    return None


def decide_replay(
    report: Report,
    difference: Difference | None,
    expect: Sequence[str] = (),
    expect_only: Sequence[str] = (),
) -> ExitCode:
    """The exit code of a replay: 4 if it left its schedule, whatever was found; else the verdict's.

    A failure of the harness, and Ctrl-C, stay what they are.
    """
    verdict = ExitCode(report.exit_code)
    if difference is not None and verdict not in {ExitCode.FAILED, ExitCode.INTERRUPTED}:
        return ExitCode.INCOMPLETE
    return decide_exit(report, expect, expect_only)


def _wrong(expected: str, passed: HoldPass, timeline: Timeline, parts: dict[str, int]) -> str:
    """What is wrong with a pass; empty if nothing. Remembers who plays which part."""
    if passed.hold != expected:
        return f"another hold was passed: {passed.hold}"
    part = expected.partition(":")[0]
    known = parts.get(part)
    if known is not None and known != passed.tid:
        return f"was passed by another thread than {part}'s holds before"
    double = next((p for p, tid in parts.items() if tid == passed.tid and p != part), None)
    if double is not None:
        return f"was passed by the thread that is {double} already"
    if part == MAIN and passed.tid != timeline.main_tid:
        return "was not passed by the main thread"
    native = timeline.schedule.threads.get(part) if timeline.schedule else None
    if native is not None and native != lives.native(passed.tid):
        return f"was not passed by the thread that plays {part}"
    parts[part] = passed.tid
    return ""


def _missing(number: int, expected: str, timeline: Timeline, parts: dict[str, int]) -> Difference:
    schedule = timeline.schedule
    assert schedule is not None
    tid = parts.get(expected.partition(":")[0])
    state = "is impossible" if schedule.state == "impossible" else "was not reached"
    why = schedule.reason or "the process ended first"
    return Difference(
        number=number + 1,
        expected=expected,
        got="",
        thread="" if tid is None else timeline.name(tid),
        reason=f"{state}: {why}",
    )


def _differs(
    number: int, expected: str, passed: HoldPass, timeline: Timeline, reason: str
) -> Difference:
    return Difference(
        number=number + 1,
        expected=expected,
        got=passed.hold,
        thread=timeline.name(passed.tid),
        reason=reason,
        evidence=passed.seq,
    )
