"""The built-in trainer under the watch: ``python -m harness.run --threads 3 --warmup grad``."""

import shlex
import sys

from dflash_min.cli import parse
from harness.causes import CAUSES
from harness.child.privacy import mask_argv
from harness.command import command
from harness.flow import Job, run_job
from harness.spec import RunSpec, arguments_of_file, spec_file
from harness.supervise.interpreter import check_torch, inspect

PROG = "harness.run"


@command(PROG)
def main(argv: list[str]) -> int:
    """Train, diagnose and report; returns the exit code."""
    file = spec_file(argv)
    given = [*(arguments_of_file(file) if file else ()), *argv]
    spec = parse(RunSpec, given, prog=PROG, description=__doc__ or "")
    spec.watch.check([cause.EXPLANATION.code for cause in CAUSES])
    threads = spec.drafter_threads()
    check_torch(inspect(sys.executable), needed=True)
    return run_job(
        Job(
            prog=PROG,
            slug=f"run-{spec.train.warmup}",
            command=(sys.executable, "-m", "dflash_min.train", *spec.trainer_arguments()),
            options=spec.watch,
            expected_threads=threads,
            replay=shlex.join(["python", "-m", PROG, *mask_argv(argv)]),
            captured=True,
            verbose=spec.verbose,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
