"""The built-in trainer under the watch: ``python -m harness.run --threads 3 --warmup grad``."""

import shlex
import sys
from collections.abc import Sequence

from dflash_min.cli import fail, parse
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.diagnosis.build import Expectations
from harness.exits import ExitCode
from harness.spec import RunSpec, arguments_of_file, spec_file
from harness.supervise.flow import Job, run_job
from harness.supervise.interpreter import check_torch, inspect

PROG = "harness.run"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Raises SystemExit for ``--help`` and usage errors."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
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
                expectations=Expectations(threads=threads),
                replay=shlex.join(["python", "-m", PROG, *argv]),
                captured=True,
                verbose=spec.verbose,
            )
        )
    except UsageError as error:
        fail(PROG, str(error))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
