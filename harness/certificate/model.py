"""What a certificate says: ``certificate.json``, from which its texts are made."""

from typing import Literal

import msgspec

from harness.diagnosis.report import Verdict
from harness.schedule.results import Reported

CERTIFICATE_SCHEMA = 1

What = Literal["as it likes", "control", "plan", "exploration"]


class TriedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: under which schedule, and what came of it (``harness.schedule.outcome.Kind``)."""

    what: What
    name: str
    schedule: str
    kind: str
    roots: tuple[str, ...] = ()
    headline: str = ""
    folder: str = ""
    compiles_after_warmup: int = 0
    wall_s: float = 0.0


class NotRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was not run, and why."""

    name: str
    reason: str


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A point and the threads that came to it after the warm-up, in so many of the runs."""

    point: str
    threads: tuple[str, ...] = ()
    runs: int = 0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of a callable, a device, a context and inputs, over all runs and threads.

    Attributes:
        callable: qualified name of what is compiled, with ``file`` and ``line``.
        warmed: the warm-up made this very combination.
        threads: names of those that came to it after the warm-up, by running or by asking.
        hit, missed: calls after the warm-up by what came of them; a miss is a compile, or a call
            that ran eager.
        fits: so many times an entry of the warm-up answered that it fits.
        rejected: so many times none of them did; ``fits_later``: of these, so many times one that
            was made after the warm-up did.
        asked_only: it was asked about in a thread that never made the call.
        disagreed: calls that went another way than the entries had answered.
        raced: calls beside which another thread compiled the callable, so that they may.
        guards: what rejected it, as torch words it.
    """

    callable: str
    file: str
    line: int
    device: str
    context: str
    inputs: str
    warmed: bool = False
    threads: tuple[str, ...] = ()
    hit: int = 0
    missed: int = 0
    fits: int = 0
    rejected: int = 0
    fits_later: int = 0
    asked_only: int = 0
    disagreed: int = 0
    raced: int = 0
    guards: tuple[str, ...] = ()

    @property
    def ran(self) -> int:
        """Calls after the warm-up."""
        return self.hit + self.missed

    @property
    def state(self) -> str:
        """What is known of it, in a word or two."""
        if self.missed:
            return "not covered"
        if self.ran:
            return "covered too late" if self.fits_later else "covered"
        if self.rejected:
            return "would not be covered"
        return "would be covered" if self.fits else "warmed, not called"


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up that covers what is missing.

    Attributes:
        lines: Python code, or flags of the trainer.
        why: one sentence.
        argv: the trainer's arguments with it, or the program's words; empty where there are none.
        obstacle: why it cannot be applied; empty if it can.
    """

    lines: tuple[str, ...]
    why: str = ""
    argv: tuple[str, ...] = ()
    obstacle: str = ""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried and found.

    Attributes:
        verdict, exit_code: as those of a report; ``found`` also where a call was not covered.
        headline: one paragraph that stands alone.
        argv: the program.
        warmup_ends: how the end of the warm-up was told.
        tested: every run, in order; ``reported``: what was found, with tokens.
        not_run: named plans that were not run.
        points: all points, reached or not.
        coverage: the table; ``left_out``: so many calls, at least, are not in it.
        suggestion: None where nothing is missing, or nothing is known that would help.
        complete: all schedules that were to be run were.
        command: the command line that does it again.
        after: the certificate with the suggested warm-up, where that was applied.
    """

    verdict: Verdict
    exit_code: int
    headline: str
    schema: int = CERTIFICATE_SCHEMA
    argv: tuple[str, ...] = ()
    harness: str = ""
    torch: str = ""
    python: str = ""
    warmup_ends: str = ""
    tested: tuple[TriedRun, ...] = ()
    reported: tuple[Reported, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    points: tuple[Reached, ...] = ()
    coverage: tuple[Cell, ...] = ()
    left_out: int = 0
    suggestion: Suggestion | None = None
    complete: bool = False
    interrupted: bool = False
    wall_s: float = 0.0
    command: str = ""
    after: "Certificate | None" = None
