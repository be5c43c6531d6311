"""What is live on this installation: ``python -m harness.doctor [--python PYTHON] [--json]``."""

import json
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash_min.cli import parse
from harness.checkup import Checkup, examine
from harness.command import command
from harness.render.output import reader_may_leave
from harness.spec import NoProbe, check_probes, check_timeout

PROG = "harness.doctor"
_STATES = (
    "A small program runs under the watch, and each probe is live (it recorded what that program "
    "did), idle (what it watches was never imported, so there was nothing to see: workload hears "
    "only a trainer that announces its steps), silent (in place, but it recorded nothing), missing "
    "(this torch lacks what it watches), failed, disabled or in conflict with another tool. The "
    "exit code is 0 if all are live or idle and 4 otherwise."
)
_COLOURS = {"live": "green", "idle": "dim", "disabled": "yellow"}


@dataclass(frozen=True)
class DoctorSpec:
    """What to examine."""

    python: str = ""
    """Interpreter to examine (default: the one that runs this command)."""
    json: bool = False
    """Print JSON instead of a table."""
    timeout: float = 180.0
    """Seconds that the self-test may take."""
    no_probe: NoProbe = ()


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print everything as a table."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, state: str, about: str, *, good: bool) -> None:
        colour = _COLOURS.get(state, "green" if good else "red")
        table.add_row(Text(name), Text(state, colour), Text(about))

    torch = checkup.interpreter.torch
    cuda = f", CUDA {checkup.interpreter.cuda}" if checkup.interpreter.cuda else ""
    row("python", checkup.interpreter.python, checkup.interpreter.path, good=True)
    supported = "supported" if not checkup.torch_problem else "unsupported"
    about = checkup.torch_problem or f"torch {torch}{cuda}"
    row("torch", supported, about, good=not checkup.torch_problem)
    for probe in checkup.probes:
        row(f"probe {probe.name}", probe.state, probe.reason, good=probe.works)
    problem = checkup.self_test_problem
    row("self-test", "failed" if problem else "passed", problem, good=not problem)
    problem = checkup.py_spy_problem
    about = problem or "stacks of hung programs"
    row("py-spy", "unusable" if problem else "usable", about, good=not problem)
    row("GPUs", str(len(checkup.gpus)), ", ".join(checkup.gpus), good=True)
    for cache in checkup.caches:
        state = "warm" if cache.files else "cold"
        about = f"{cache.path}, used under --keep-cache only"
        row(cache.variable, state, about, good=True)
    console.print(table)


@command(PROG)
def main(argv: list[str]) -> int:
    """Run the self-test and print what was found; returns the exit code."""
    spec = parse(DoctorSpec, argv, prog=PROG, description=f"{__doc__} {_STATES}")
    check_probes(spec.no_probe)
    check_timeout(spec.timeout)
    checkup = examine(
        spec.python or sys.executable, timeout_s=spec.timeout, disabled_probes=spec.no_probe
    )
    with reader_may_leave():
        if spec.json:
            print(json.dumps(checkup.to_json(), indent=2))
        else:
            print_checkup(checkup, Console())
    return checkup.exit_code


if __name__ == "__main__":
    sys.exit(main())
