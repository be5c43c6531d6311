"""The flags that put a program's threads in an order, the same for all commands that start one."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from dflash_min.errors import UsageError
from harness.schedule.named import plan_of
from harness.schedule.plan import Plan, Schedule
from harness.schedule.token import Token, parse_token

MOST_RUNS = 1_000_000
"""What ``--explore`` takes at most: weeks, at seconds a run."""
MOST_JOBS = 512
"""What ``--jobs`` takes at most: each is a process of its own that imports torch."""


@dataclass(frozen=True)
class ScheduleOptions:
    """Which interleaving is forced, or searched for."""

    schedule: str = ""
    """Plan to force, by name (fx-flag, stampede ...; NAME-serial: its control) or a .toml file."""
    schedule_token: str = ""
    """Run again what a token stands for; the program and its options come from the token."""
    cross_version: bool = False
    """Run a token of another torch minor version all the same."""
    explore: int = 0
    """Search: run so many schedules, each in a fresh process."""
    strategy: Literal["enumerate", "pct", "chaos"] = "enumerate"
    """How the search picks schedules: over recorded points, random priorities, random delays."""
    search_seed: int = 0
    """Seed of the search's random choices."""
    jobs: Annotated[int, tyro.conf.arg(aliases=["-j"])] = 1
    """So many of the search's runs at a time."""
    minimise: bool = False
    """Make what was found, by a schedule or a search, smaller while the root causes stay."""
    emit_script: bool = False
    """Write repro.py, which shows the forced race by itself with torch alone, and run it."""

    def check(self) -> None:
        """Refuse what cannot be done. Raises UsageError."""
        if sum(map(bool, (self.schedule, self.schedule_token, self.explore))) > 1:
            raise UsageError("only one of --schedule, --schedule-token and --explore")
        if self.explore < 0 or self.jobs < 1:
            raise UsageError("--explore and --jobs count runs: at least 1")
        for flag, value, most in (
            ("--explore", self.explore, MOST_RUNS),
            ("--jobs", self.jobs, MOST_JOBS),
        ):
            if value > most:
                raise UsageError(f"{flag} is at most {most}, got {value}")
        if not 0 <= self.search_seed < 2**63:
            raise UsageError(
                f"--search-seed must be between 0 and 2**63 - 1, got {self.search_seed}"
            )
        for flag, given in (("--minimise", self.minimise), ("--emit-script", self.emit_script)):
            if given and not (self.schedule or self.schedule_token or self.explore):
                raise UsageError(
                    f"{flag} is for what --schedule, --schedule-token or --explore finds"
                )
        if self.cross_version and not self.schedule_token:
            raise UsageError("--cross-version is for a --schedule-token")
        asked = self.asked()
        if self.minimise and asked is not None and not isinstance(asked, Plan):
            raise UsageError("--minimise is for a schedule of holds")

    @property
    def searches(self) -> bool:
        """Whether it takes more than one run."""
        return bool(self.explore) or self.minimise

    def token(self) -> Token | None:
        """The token that was given. Raises UsageError for one that is none."""
        return parse_token(self.schedule_token) if self.schedule_token else None

    def asked(self) -> Schedule | None:
        """The schedule of the run; None: its threads run as they like. Raises UsageError."""
        token = self.token()
        if token is not None:
            return token.schedule
        return plan_of(self.schedule) if self.schedule else None
