"""Train a DFlash drafter in threads: `python -m dflash_min.train --threads 3 --warmup grad`."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dflash_min import cli, stopping
from dflash_min.command import command
from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.environment import check_torch, visible_gpus
from dflash_min.errors import SaveError, TrainingError, UsageError
from dflash_min.resolve import resolve
from dflash_min.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dflash_min.evaluation.evaluate import Evaluation
    from dflash_min.step_report import StepReport
    from dflash_min.trainer import Summary, Trainer

PROG: Final = "dflash_min.train"

_RESUMING: Final = ("--resume", "--no-resume")


@dataclass(frozen=True)
class Command:
    """What `python -m dflash_min.train` takes."""

    train: TrainConfig = field(default_factory=TrainConfig)
    """What is trained."""
    save: SaveConfig = field(default_factory=SaveConfig)
    """What is saved."""


@command(PROG)
def main(argv: Sequence[str] | None = None) -> Summary:
    """Parse the command line, train, and print one line of summary on stdout.

    After Ctrl-C, SIGTERM or SIGHUP training stops, saved, and the process ends by that signal.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend; with
            code 1 after one for a run that cannot go on and whose code is not at fault.
        ExceptionGroup: holding every failed thread's exception.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    asked = cli.parse(
        Command,
        argv,
        prog=PROG,
        description="Train a DFlash drafter with target and drafter threads in one process.",
    )
    ending = Ending(argv)
    with stopping.stopped_by_signals(ending.stop, ending.line) as signalled:
        try:
            check_torch()
            resolved = resolve(asked.train, visible_gpus())
            from dflash_min.trainer import Trainer

            trainer = ending.trainer = Trainer(resolved, asked.save)
            for note in trainer.notes:
                cli.say(PROG, note)
            summary = _run(trainer, ending)
        except UsageError as error:
            cli.fail(PROG, str(error))
        except BaseException as error:
            if ending.trainer is not None and ending.trainer.left_behind:
                stopping.leave_threads(error, signalled.signal)
            raise
    if signalled.signal is not None:
        stopping.say(ending.line(signalled.signal.name))
        stopping.end_by(signalled.signal)
    cli.show(_summary_line(summary, trainer.newest))
    return summary


def _run(trainer: Trainer, ending: Ending) -> Summary:
    progress = Progress(trainer.resolved.steps)
    try:
        return trainer.run(progress, progress.held_out, lambda line: cli.say(PROG, line))
    except SaveError as error:
        progress.end()
        cli.say(PROG, f"error: {error}")
        raise SystemExit(1) from error
    except BaseExceptionGroup as group:
        progress.end()
        expected, others = group.split(TrainingError)
        if others is not None:
            kinds = ", ".join(type(error).__name__ for error in group.exceptions)
            cli.say(PROG, f"{group.message}: {kinds}")
        elif expected is not None:
            # What all drafters find is one thing.
            said = dict.fromkeys(map(str, expected.exceptions))
            for line in (*said, *getattr(group, "__notes__", ())):
                cli.say(PROG, f"error: {line}")
        if trainer.folder is not None:
            cli.say(PROG, ending.saved())
        if others is not None:
            raise
        raise SystemExit(1) from group
    finally:
        progress.end()


class Ending:
    """Ends a run early, and what is said of it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.trainer: Trainer | None = None
        """Once it is built; before, there is nothing to end."""
        self._argv = [word for word in argv if word not in _RESUMING]
        self._resuming = [word for word in argv if word in _RESUMING][-1:] == ["--resume"]

    def stop(self) -> bool:
        """Let training end, as `Trainer.stop` has it."""
        return self.trainer is not None and self.trainer.stop()

    def line(self, signal_name: str) -> str:
        """Return the line for a run that a signal has stopped."""
        when = "before the first step"
        if self.trainer is not None and self.trainer.finished:
            when = f"after step {self.trainer.finished} of {self.trainer.resolved.steps}"
        return f"{PROG}: stopped by {signal_name} {when}; {self.saved()}"

    def saved(self) -> str:
        """Say what is saved, and how to go on from there."""
        newest = None if self.trainer is None else self.trainer.newest
        why = ""
        if self.trainer is not None and self.trainer.between_steps:
            why = ": an update of the weights was under way, and did not end in time"
        if newest is None:
            # What is resumed may be the work of days.
            building = self._resuming and self.trainer is None
            return f"{'nothing new' if building else 'nothing'} is saved{why}"
        again = shlex.join(["python", "-m", PROG, *self._argv, "--resume"])
        later = f"; nothing later is{why}" if why else ""
        return f"saved {newest}{later}; go on with: {again}"


class Progress:
    """Reports steps on stderr: one line rewritten on a terminal, elsewhere about six lines."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._every = max(1, steps // 6)
        self._line = StatusLine()
        self._began: float | None = None
        self._tokens = 0

    def __call__(self, report: StepReport) -> None:
        """Show a step that has just ended."""
        if self._began is None:
            self._began = time.perf_counter() - report.seconds
        self._tokens += report.tokens
        rate = self._tokens / (time.perf_counter() - self._began)
        done = report.step + 1
        self._line.update(
            f"step {done}/{self._steps}  loss {report.loss:.4f}  "
            f"accept_len {report.accept_len:.2f}  {rate:,.0f} tokens/s",
            due=done == self._steps or done % self._every == 0,
        )

    def held_out(self, evaluation: Evaluation) -> None:
        """Show an evaluation as a line of its own."""
        self._line.add(evaluation.line())

    def end(self) -> None:
        """Leave the rewritten line."""
        self._line.end()


def _summary_line(summary: Summary, newest: Path | None) -> str:
    if summary.steps:
        line = (
            f"trained {summary.steps} steps in {summary.seconds:.1f} s: "
            f"loss {summary.first_loss:.4f} -> {summary.loss:.4f}, "
            f"accept_len {summary.accept_len:.2f}, {summary.tokens / summary.seconds:,.0f} tokens/s"
        )
    else:
        line = "all steps were done already"
    if summary.held_out_loss is not None:
        line += (
            f"; held out: loss {summary.held_out_loss:.4f}, "
            f"accept_len {summary.held_out_accept_len:.2f}"
        )
    if newest is None:
        return line
    return f"{line}; {'saved' if summary.steps else 'they are in'} {newest}"


if __name__ == "__main__":
    main()
