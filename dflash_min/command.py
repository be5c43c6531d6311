"""How every command of the trainer ends where it cannot go on: one line on stderr, no traceback."""

from __future__ import annotations

import ast
import functools
import signal
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dflash_min import cli, standard_streams, stopping
from dflash_min.errors import OutputError, TrainingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_P = ParamSpec("_P")
_R = TypeVar("_R")


def command(prog: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a command of a function.

    Of what the function raises, UsageError becomes one line and exit code 2, TrainingError and
    stdout that takes nothing more one line and exit code 1. Where stdout's reader is gone the
    process ends by SIGPIPE, and after Ctrl-C, where nothing else handles it, by SIGINT. Streams
    that are closed, and a stderr that takes nothing more, change nothing.

    Args:
        prog: the command's name, for the line.
    """

    def wrap(main: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(main)
        @standard_streams.usable()
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return main(*args, **kwargs)
            except UsageError as error:
                cli.fail(prog, str(error))
            except TrainingError as error:
                cli.say(prog, f"error: {error}")
                raise SystemExit(1) from error
            except OutputError as error:
                tell_of_output(prog, error)
                raise SystemExit(1) from error
            except KeyboardInterrupt:
                stopping.say(f"{prog}: stopped by {signal.SIGINT.name}")
                stopping.end_by(signal.SIGINT)

        return run

    return wrap


def commands(package: str, folder: Path) -> dict[str, str]:
    """Return the modules of a package that define PROG, with the first line of what each says."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(_defines(node, "PROG") for node in tree.body):
            first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
            found[f"{package}.{path.stem}"] = first_line.replace("``", "`")
    return found


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == name for target in targets)
        case ast.AnnAssign(target=ast.Name(id=found)):
            return found == name
    return False


def tell_of_output(prog: str, error: OutputError) -> None:
    """Say in one line that stdout takes nothing more, or end by SIGPIPE if its reader is gone."""
    standard_streams.drop(sys.stdout)
    if isinstance(error.__cause__, BrokenPipeError):
        stopping.end_by(signal.SIGPIPE)  # whoever read it has had enough
    cli.say(prog, f"error: stdout: {error}")
