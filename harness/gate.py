"""The gate for CI: a suite of scenarios and specs, run and compared with a committed baseline."""

import datetime as dt
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dflash_min.cli import parse, say
from dflash_min.errors import UsageError
from dflash_min.standard_streams import tell
from harness.child.privacy import mask_argv
from harness.command import command
from harness.exits import ExitCode
from harness.gating.baseline import Baseline, read_baseline
from harness.gating.compare import Measured
from harness.gating.conclude import Began, commit, conclude, write_outcome
from harness.gating.folder import gate_folder, is_full
from harness.gating.machine import look
from harness.gating.outcome import Gate, dumps
from harness.gating.session import Session
from harness.gating.suite import Suite, read_suite
from harness.gating.summary import annotations, checkout, terminal
from harness.gating.update import Known, record, updated
from harness.render.output import reader_may_leave

PROG = "harness.gate"


@dataclass(frozen=True)
class Args:
    """What to run, and what to do with it."""

    suite: tyro.conf.Positional[Path] = Path("gate.toml")
    """The suite."""
    out: Path = Path("reports/gate")
    """Folder for gate.json, junit.xml, summary.md and all runs; emptied of an earlier gate's."""
    only: tuple[str, ...] = ()
    """Run these entries of the suite only."""
    jobs: Annotated[int, tyro.conf.arg(aliases=["-j"])] = 1
    """So many entries at a time; each has its GPUs for itself."""
    compile_race_require_gpu: int = 0
    """So many GPUs have to be visible: entries that need at most so many are not left out."""
    update_baseline: bool = False
    """Make the results the baseline of this torch and these devices, after showing what changes."""
    yes: bool = False
    """Write the baseline without asking."""
    upstream: str = ""
    """Reference for results that --update-baseline records though they are not right."""
    expires: str = ""
    """The day, such as 2027-03-31, from which those no longer hold."""
    json: bool = False
    """Print gate.json instead of the text."""

    def known(self) -> Known:
        """``--upstream`` and ``--expires``. Raises UsageError."""
        try:
            expires = dt.date.fromisoformat(self.expires) if self.expires else None
        except ValueError as error:
            raise UsageError(f"--expires is a date such as 2027-03-31: {error}") from error
        return Known(self.upstream.strip(), expires)


@command(PROG)
def main(argv: list[str]) -> int:
    """Run, compare, write and print; returns the exit code."""
    args = parse(Args, argv, prog=PROG, description=__doc__ or "")
    suite, baseline = _read(args)
    began = Began(dt.datetime.now(dt.UTC), shlex.join(["python", "-m", PROG, *mask_argv(argv)]))
    with gate_folder(args.out) as out:
        session = Session(
            suite,
            out,
            look(),
            only=args.only,
            require_gpus=args.compile_race_require_gpu,
            jobs=args.jobs,
            tell=lambda line: say(PROG, line),
        )
        try:
            measured = session.run()
        except OSError as error:
            if not is_full(error):
                raise
            say(PROG, f"infrastructure fault: the disk is full: nothing can be written to {out}")
            return ExitCode.INCOMPLETE
        gate = conclude(session, baseline, measured, began)
        written = write_outcome(gate, out, lambda line: say(PROG, line))
    _print(gate, args, out)
    if args.update_baseline:
        return _record(args, baseline, measured, began)
    if not written and gate.exit_code == ExitCode.CLEAN:
        return ExitCode.INCOMPLETE
    return gate.exit_code


def _read(args: Args) -> tuple[Suite, Baseline]:
    """The suite and the baseline, each checked against the flags and each other."""
    suite = read_suite(args.suite)
    names = [entry.name for entry in suite.entries]
    for name in args.only:
        if name not in names:
            raise UsageError(f"--only {name}: {suite.path} has {', '.join(names)}")
    if not 1 <= args.jobs <= 512:
        raise UsageError(f"--jobs counts entries at a time, 1 to 512, got {args.jobs}")
    if not 0 <= args.compile_race_require_gpu <= 64:
        raise UsageError("--compile-race-require-gpu counts GPUs, 0 to 64")
    args.known()
    baseline = read_baseline(suite.baseline)
    if not args.update_baseline:
        baseline.check({entry.name: entry.expect for entry in suite.entries})
    return suite, baseline


def _record(args: Args, baseline: Baseline, measured: Sequence[Measured], began: Began) -> int:
    at = commit(baseline.path.parent)
    entries, left = updated(baseline, measured, args.known(), began.today, at)
    return record(baseline, entries, left, yes=args.yes, tell=lambda line: say(PROG, line))


def _print(gate: Gate, args: Args, out: Path) -> None:
    with reader_may_leave(kept=lambda line: say(PROG, line)):
        sys.stdout.write(dumps(gate) if args.json else terminal(gate, out))
        root = checkout()
        annotate = tell if args.json else print
        for line in () if root is None else annotations(gate, root):
            annotate(line)


if __name__ == "__main__":
    sys.exit(main())
