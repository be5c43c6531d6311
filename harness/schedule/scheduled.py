"""A command under a schedule: its tokens, and the runs of a token."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dflash_min.cli import say
from dflash_min.errors import UsageError
from harness import __version__
from harness.child.privacy import MASK, mask_argv
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.schedule.emit import SCRIPT, Forced, say_script
from harness.schedule.options import ScheduleOptions
from harness.schedule.plan import Schedule
from harness.schedule.replay import decide_replay, first_difference
from harness.schedule.script import Parts
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


def has_masked(token: Token) -> bool:
    """Whether a password was masked in a token's command line, which then cannot be run."""
    return any(MASK in word for word in token.argv)


@dataclass(frozen=True)
class Scheduled:
    """What a command needs to run under schedules.

    Attributes:
        kind: the command.
        argv: what a token has to carry of it (see ``harness.schedule.token.Token``).
        options: the flags.
        versions: what is installed for the program's interpreter.
        kept_cache: the compile cache is not a fresh one.
        backend, dynamic: ``torch.compile``'s, where the command sets them.
    """

    kind: Kind
    argv: tuple[str, ...]
    options: ScheduleOptions
    versions: Versions
    kept_cache: bool = False
    backend: str = ""
    dynamic: bool | None = None

    @property
    def parts(self) -> Parts:
        """What a script of what is found is filled with."""
        parts = Parts(torch=self.versions.torch, python=self.versions.python, dynamic=self.dynamic)
        return replace(parts, backend=self.backend) if self.backend else parts

    def token(self, schedule: Schedule) -> str:
        """The token of a schedule of this command.

        It is written down and handed on, so passwords in the command line are masked in it.
        """
        argv = relative_argv(self.argv, Path.cwd()) if self.kind == "watch" else self.argv
        return dump_token(
            token_of(
                schedule,
                versions=self.versions,
                command=self.kind,
                argv=mask_argv(argv),
                cache="kept" if self.kept_cache else "cold",
            )
        )

    def with_argv(self, argv: Sequence[str]) -> "Scheduled":
        """The same command with other arguments."""
        return replace(self, argv=tuple(argv))

    def replay_of(self, prog: str, schedule: Schedule, flags: Sequence[str] = ()) -> str:
        """The command line that runs a schedule of this command again."""
        return shlex.join(["python", "-m", prog, *flags, "--schedule-token", self.token(schedule)])

    def replay(self, prog: str, flags: Sequence[str] = ()) -> str:
        """The same for the schedule that was asked for; empty where none was."""
        schedule = self.options.asked()
        return "" if schedule is None else self.replay_of(prog, schedule, flags)

    def script(
        self, report: Report, recording: Recording, folder: Path, interpreter: str
    ) -> str | None:
        """Write and run the script of what a run found; the line to print; None: not asked for."""
        if not self.options.emit_script:
            return None
        forced = Forced(report, recording, self.options.asked(), self.parts)
        return say_script(folder / SCRIPT, forced, interpreter)

    def check_versions(self, prog: str) -> None:
        """Refuse a token of another torch; say what else differs. Raises UsageError."""
        token = self.options.token()
        if token is None:
            return
        for said in check_versions(token, self.versions, cross_version=self.options.cross_version):
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
