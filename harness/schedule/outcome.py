"""What became of one run of a schedule."""

from typing import Literal, Protocol

import msgspec

from harness.diagnosis.report import Report
from harness.events.schedules import ScheduleData
from harness.schedule.plan import Plan, Schedule

Kind = Literal["found", "clean", "not reached", "impossible", "incomplete", "failed"]
KINDS: tuple[Kind, ...] = (
    "found",
    "clean",
    "not reached",
    "impossible",
    "incomplete",
    "failed",
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        kind: ``found``, whatever became of the schedule; ``impossible`` and ``not reached``, of its
            holds; ``incomplete``: nothing can be said (no compiled call, a time limit, a missing
            probe); ``failed``: the harness itself; else ``clean``.
        verdict: the report's.
        roots: codes of the root findings, in the report's order.
        codes: codes of all findings.
        headline: the report's, for what was found; else why it is what it is.
        folder: the run folder's name; empty if there is none.
        plans: plans that may force what was found, the tightest first.
        wall_s: seconds from start to end.
        followed: the run did what its schedule said, step by step.
    """

    kind: Kind
    verdict: str = ""
    roots: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    headline: str = ""
    folder: str = ""
    plans: tuple[Plan, ...] = ()
    wall_s: float = 0.0
    followed: bool = True

    @property
    def signature(self) -> tuple[frozenset[str], str]:
        """What another run has to show as well: the root causes and the verdict."""
        return frozenset(self.roots), self.verdict

    def shows(self, other: "Outcome") -> bool:
        """Whether this run followed its schedule and showed what another one did."""
        return self.followed and self.signature == other.signature


class Runner(Protocol):
    """Runs schedules, each in a fresh process. Called from several threads at once."""

    def run(self, schedule: Schedule, slot: int) -> Outcome:
        """Run one.

        Args:
            schedule: what to run.
            slot: which of the places that run side by side this is, from 0: for GPUs, say.

        Raises:
            Stopped: the search was stopped meanwhile.
            UsageError: the program cannot be started at all.
        """

    def stop(self) -> None:
        """Have every run that is going on end soon, by raising ``Stopped``."""

    def drop(self, outcome: Outcome) -> None:
        """Remove what a run left on the disk."""


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """A run was given up because the search was stopped."""


def failed(error: Exception) -> Outcome:
    """What becomes of a run that the harness itself failed in."""
    headline = f"{type(error).__name__}: {error}"
    return Outcome(kind="failed", verdict="failed", headline=headline, followed=False)


def outcome_of(report: Report, schedule: ScheduleData | None, left: str = "") -> Outcome:
    """Classify a run by its report and the last that its schedule said.

    Args:
        report: of the run.
        schedule: how far the schedule got; None if the run's process had none.
        left: where the run left what it was asked to do, in words; empty if it did it all. Such a
            run shows nothing by being clean.
    """
    kind: Kind
    headline = report.headline
    if report.verdict == "found":
        kind = "found"
    elif schedule is not None and schedule.state == "impossible":
        kind, headline = "impossible", schedule.reason
    elif schedule is not None and schedule.state == "not reached":
        kind, headline = "not reached", f"{schedule.next} was not reached: {schedule.reason}"
    elif report.verdict == "clean" and left:
        kind, headline = "not reached", left
    else:
        kind = report.verdict if report.verdict in {"clean", "failed"} else "incomplete"
    return Outcome(
        kind=kind,
        verdict=report.verdict,
        roots=tuple(f.code for f in report.findings if f.root),
        codes=tuple(f.code for f in report.findings),
        headline=headline,
        followed=not left,
    )
