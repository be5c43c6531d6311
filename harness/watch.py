"""Any program under the watch: ``python -m harness.watch [options] -- script.py args ...``."""

import shlex
import sys
from collections.abc import Sequence

from dflash_min.cli import fail, parse
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.exits import ExitCode
from harness.spec import WatchSpec
from harness.supervise.flow import Job, run_job
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.program import read_program

PROG = "harness.watch"
_HELP = f"{__doc__} Also: -- -m module args ..., after any of Python's own options."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Raises SystemExit for ``--help`` and usage errors."""
    argv = sys.argv[1:] if argv is None else list(argv)
    split = argv.index("--") if "--" in argv else len(argv)
    try:
        spec = parse(WatchSpec, argv[:split], prog=PROG, description=_HELP)
        spec.watch.check([cause.EXPLANATION.code for cause in CAUSES])
        program = read_program(argv[split + 1 :])
        python = spec.python or sys.executable
        check_torch(inspect(python, program.module), needed=False)
        return run_job(
            Job(
                prog=PROG,
                slug=f"watch-{program.slug}",
                command=(python, *program.words),
                options=spec.watch,
                replay=shlex.join(["python", "-m", PROG, *argv]),
                passthrough=spec.passthrough,
            )
        )
    except UsageError as error:
        fail(PROG, str(error))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
