"""The flags that put a program's threads in an order, the same for all commands that start one."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from dflash_min.errors import UsageError
from harness.schedule.named import plan_of
from harness.schedule.plan import Schedule
from harness.schedule.token import Token, parse_token


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
    """Make what the search reports smaller while the root causes stay the same."""

    def check(self) -> None:
        """Refuse what cannot be done. Raises UsageError."""
        if sum(map(bool, (self.schedule, self.schedule_token, self.explore))) > 1:
            raise UsageError("only one of --schedule, --schedule-token and --explore")
        if self.explore < 0 or self.jobs < 1:
            raise UsageError("--explore and --jobs count runs: at least 1")
        if self.minimise and not self.explore:
            raise UsageError("--minimise is for what --explore finds")
        if self.cross_version and not self.schedule_token:
            raise UsageError("--cross-version is for a --schedule-token")
        self.asked()

    def token(self) -> Token | None:
        """The token that was given. Raises UsageError for one that is none."""
        return parse_token(self.schedule_token) if self.schedule_token else None

    def asked(self) -> Schedule | None:
        """The schedule of the run; None: its threads run as they like. Raises UsageError."""
        token = self.token()
        if token is not None:
            return token.schedule
        return plan_of(self.schedule) if self.schedule else None
