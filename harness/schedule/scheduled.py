"""A command under a schedule: its tokens, and the runs of a token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_min.cli import say
from dflash_min.errors import UsageError
from harness import __version__
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.schedule.options import ScheduleOptions
from harness.schedule.plan import Schedule
from harness.schedule.replay import decide_replay, first_difference
from harness.schedule.token import (
    Token,
    Versions,
    check_versions,
    dump_token,
    relative_argv,
    token_of,
)
from harness.supervise.interpreter import Interpreter
from harness.timeline.recording import Recording

Kind = Literal["run", "watch"]


def token_for(options: ScheduleOptions, kind: Kind) -> Token | None:
    """The token that was given, for the command ``kind``; None without one.

    Raises:
        UsageError: it is none, or it is of the other command.
    """
    token = options.token()
    if token is not None and token.command != kind:
        raise UsageError(f"the token is of harness.{token.command}: give it to that command")
    return token


@dataclass(frozen=True)
class Scheduled:
    """What a command needs to run under schedules.

    Attributes:
        kind: the command.
        argv: what a token has to carry of it (see ``harness.schedule.token.Token``).
        options: the flags.
        versions: what is installed for the program's interpreter.
        kept_cache: the compile cache is not a fresh one.
    """

    kind: Kind
    argv: tuple[str, ...]
    options: ScheduleOptions
    versions: Versions
    kept_cache: bool = False

    def token(self, schedule: Schedule) -> str:
        """The token of a schedule of this command."""
        argv = relative_argv(self.argv, Path.cwd()) if self.kind == "watch" else self.argv
        return dump_token(
            token_of(
                schedule,
                versions=self.versions,
                command=self.kind,
                argv=argv,
                cache="kept" if self.kept_cache else "cold",
            )
        )

    def check_versions(self, prog: str) -> None:
        """Refuse a token of another torch; say what else differs. Raises UsageError."""
        token = self.options.token()
        if token is None:
            return
        for said in check_versions(
            token, self.versions, cross_version=self.options.cross_version
        ):
            say(prog, said)

    def decide(
        self,
        prog: str,
        recording: Recording,
        report: Report,
        expect: Sequence[str],
        expect_only: Sequence[str],
    ) -> ExitCode | None:
        """The exit code of a token's run, after one line where it did not do what it should.

        None where no token was given: the verdict decides.
        """
        token = self.options.token()
        if token is None:
            return None
        main = next(iter(recording.timelines()), None)
        difference = first_difference(token.schedule, main)
        if difference is not None:
            say(prog, difference.said)
        return decide_replay(report, difference, expect, expect_only)


def versions_of(python: Interpreter) -> Versions:
    """What a token says of an interpreter."""
    return Versions(harness=__version__, torch=python.torch, python=python.python)


TokenOf = Callable[[Schedule], str]
