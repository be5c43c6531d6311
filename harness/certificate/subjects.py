"""What can be certified: the built-in trainer, and any program."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_min.cli import to_argv
from dflash_min.config import TrainConfig
from harness.certificate.program_code import warmup_code, with_warmup
from harness.certificate.prove import Better, Subject
from harness.certificate.trainer_flags import warmup_flags
from harness.certificate.trial import Harvest
from harness.child.privacy import mask_argv
from harness.events.files import CHILD_LOG
from harness.events.run import Run
from harness.schedule.options import ScheduleOptions
from harness.schedule.plan import Plan, Schedule
from harness.schedule.runner import ProcessRunner
from harness.schedule.scheduled import Kind, Scheduled, versions_of
from harness.spec import resolved_anywhere
from harness.supervise.interpreter import Interpreter
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.program import Program

_TRAINER = (sys.executable, "-m", "dflash_min.train")


@dataclass(frozen=True)
class Watching:
    """How each run is watched.

    Attributes:
        timeout_s: seconds after which a run is ended.
        keep_cache: use the compile caches that are there.
        expected_threads: so many threads must call compiled code and backward; None: any number.
    """

    timeout_s: float
    keep_cache: bool = False
    expected_threads: int | None = None


def trainer(config: TrainConfig, python: Interpreter, watching: Watching, command: str) -> Subject:
    """The built-in trainer with these settings."""

    def suggest(harvest: Harvest, folder: Path) -> Better | None:
        del folder
        chosen = resolved_anywhere(config, on_gpu=harvest.table.on_gpu)
        found = warmup_flags(config, chosen, harvest.codes)
        if found is None:
            return None
        suggestion, better = found
        return suggestion, trainer(better, python, watching, "")

    argv = tuple(to_argv(config))
    return _Started((*_TRAINER, *argv), argv, "run", python, watching).subject(command, suggest)


def program(given: Program, python: Interpreter, watching: Watching, command: str) -> Subject:
    """Any program."""

    def suggest(harvest: Harvest, folder: Path) -> Better | None:
        suggestion = warmup_code(harvest.table.uncovered)
        if suggestion is None:
            return None
        suggestion = with_warmup(folder, given, suggestion, marked=harvest.said_done)
        if not suggestion.argv:
            return suggestion, None
        better = replace(given, words=suggestion.argv)
        return suggestion, program(better, python, watching, "")

    words = (python.path, *given.words)
    return _Started(words, given.words, "watch", python, watching).subject(command, suggest)


@dataclass(frozen=True)
class _Started:
    """A program as it is started, and the arguments that a token of it carries."""

    words: tuple[str, ...]
    argv: tuple[str, ...]
    kind: Kind
    python: Interpreter
    watching: Watching

    def subject(self, command: str, suggest: Callable[[Harvest, Path], Better | None]) -> Subject:
        versions = versions_of(self.python)
        scheduled = Scheduled(
            self.kind, self.argv, ScheduleOptions(), versions, self.watching.keep_cache
        )
        prog = f"harness.{self.kind}"

        def run(schedule: Schedule) -> Run:
            replay = "" if schedule == Plan() else scheduled.replay_of(prog, schedule)
            expected = self.watching.expected_threads
            return Run(prog=prog, replay=replay, expected_threads=expected)

        return Subject(
            argv=tuple(mask_argv(self.argv)),
            command=command,
            ours=self.kind == "run",
            versions=versions,
            runner_for=lambda folder: ProcessRunner(folder, self._launch, run),
            token_of=scheduled.token,
            suggest=suggest,
        )

    def _launch(self, schedule: Schedule, folder: Path, slot: int) -> Launch:
        del slot
        return Launch(
            command=self.words,
            folder=folder,
            watch=WatchSettings(
                keep_cache=self.watching.keep_cache,
                schedule=None if schedule == Plan() else schedule.for_child(),
                ask=True,
            ),
            timeout_s=self.watching.timeout_s,
            log=folder / CHILD_LOG,
        )
