"""Any program under the watch: ``python -m harness.watch [options] -- script.py args ...``."""

import shlex
import sys

from dflash_min.cli import parse
from harness.causes import CAUSES
from harness.command import command
from harness.flow import Job, run_job
from harness.spec import WatchSpec
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.program import read_program

PROG = "harness.watch"
_HELP = f"{__doc__} Also: -- -m module args ..., after any of Python's own options."


@command(PROG)
def main(argv: list[str]) -> int:
    """Run the program, diagnose and report; returns the exit code."""
    split = argv.index("--") if "--" in argv else len(argv)
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


if __name__ == "__main__":
    sys.exit(main())
