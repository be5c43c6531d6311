"""Any program under the watch: ``python -m harness.watch [options] -- script.py args ...``."""

import dataclasses
import shlex
import sys

from dflash_min.cli import parse
from dflash_min.errors import UsageError
from harness.causes import CAUSES
from harness.child.privacy import mask_argv
from harness.command import command
from harness.flow import Job, run_job
from harness.spec import WatchOptions, WatchSpec
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.program import read_program

PROG = "harness.watch"
_HELP = f"{__doc__} Also: -- -m module args ..., after any of Python's own options."


@command(PROG)
def main(argv: list[str]) -> int:
    """Run the program, diagnose and report; returns the exit code."""
    split = argv.index("--") if "--" in argv else len(argv)
    _check_separated(argv[:split])
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
            replay=shlex.join(["python", "-m", PROG, *mask_argv(argv)]),
            passthrough=spec.passthrough,
        )
    )


def _check_separated(options: list[str]) -> None:
    """Refuse a program that stands among our own options, where its arguments would be ours."""
    fields = [*dataclasses.fields(WatchSpec), *dataclasses.fields(WatchOptions)]
    switches = {f"--{f.name.replace('_', '-')}" for f in fields if f.type in {bool, "bool"}}
    switches |= {switch.replace("--", "--no-", 1) for switch in switches}
    for at, word in enumerate(options):
        before = options[at - 1] if at else ""
        is_value = before.startswith("--") and before not in switches
        if word == "-m" or (word.endswith(".py") and not word.startswith("-") and not is_value):
            raise UsageError(f"put -- before the program: -- {shlex.join(options[at:])}")


if __name__ == "__main__":
    sys.exit(main())
