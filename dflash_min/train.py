"""Train a DFlash drafter in threads: `python -m dflash_min.train --threads 3 --warmup grad`."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from typing import TYPE_CHECKING, Final

from dflash_min import cli
from dflash_min.config import TrainConfig, UsageError, resolve
from dflash_min.versions import check_torch_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.pipeline import StepReport
    from dflash_min.trainer import Summary

PROG: Final = "dflash_min.train"


def main(argv: Sequence[str] | None = None) -> Summary:
    """Parse the command line, train, and print one line of summary on stdout.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend.
        ExceptionGroup: holding every failed thread's exception.
    """
    config = cli.parse(
        TrainConfig,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Train a DFlash drafter with target and drafter threads in one process.",
    )
    try:
        check_torch()
        resolved = resolve(config, visible_gpus())
        from dflash_min.trainer import Trainer

        trainer = Trainer(resolved)
    except UsageError as error:
        cli.fail(PROG, str(error))
    progress = Progress(resolved.steps)
    try:
        summary = trainer.run(progress)
    except BaseExceptionGroup as group:
        progress.end()
        kinds = ", ".join(type(error).__name__ for error in group.exceptions)
        print(f"{PROG}: {group.message}: {kinds}", file=sys.stderr)
        raise
    progress.end()
    print(_summary_line(summary), flush=True)
    return summary


def check_torch() -> None:
    """Refuse a torch that is missing or untried, without importing it.

    Raises:
        UsageError: naming the version found and those that are supported.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    check_torch_version(version, sys.executable)


def visible_gpus() -> int:
    """Return how many GPUs torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class Progress:
    """Reports steps on stderr: one line rewritten on a terminal, elsewhere about six lines."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._every = max(1, steps // 6)
        self._live = sys.stderr.isatty()
        self._began = time.perf_counter()
        self._tokens = 0

    def __call__(self, report: StepReport) -> None:
        """Show a step that has just ended."""
        if report.step == 0:
            self._began = time.perf_counter() - report.seconds
        self._tokens += report.tokens
        rate = self._tokens / (time.perf_counter() - self._began)
        done = report.step + 1
        line = (
            f"step {done}/{self._steps}  loss {report.loss:.4f}  "
            f"accept_len {report.accept_len:.2f}  {rate:,.0f} tokens/s"
        )
        if self._live:
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif done == self._steps or done % self._every == 0:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the rewritten line."""
        if self._live and self._tokens:
            print(file=sys.stderr)


def _summary_line(summary: Summary) -> str:
    line = (
        f"trained {summary.steps} steps in {summary.seconds:.1f} s: "
        f"loss {summary.first_loss:.4f} -> {summary.loss:.4f}, "
        f"accept_len {summary.accept_len:.2f}, {summary.tokens / summary.seconds:,.0f} tokens/s"
    )
    if summary.held_out_loss is not None:
        line += (
            f"; held out: loss {summary.held_out_loss:.4f}, "
            f"accept_len {summary.held_out_accept_len:.2f}"
        )
    return line


if __name__ == "__main__":
    main()
