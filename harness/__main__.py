"""Says which commands there are: ``python -m harness`` runs none itself."""

import sys
from pathlib import Path

import dflash_min.command
from dflash_min import cli
from harness.command import command
from harness.exits import ExitCode

_FOLDER = Path(__file__).parent


def commands() -> dict[str, str]:
    """Every command's name, such as ``harness.run``, with the first line of its description."""
    return dflash_min.command.commands("harness", _FOLDER)


@command("harness")
def main(argv: list[str]) -> int:
    """Print the commands; returns the exit code, 2 if one was meant to be run."""
    known = commands()
    if argv and argv[0] not in {"-h", "--help"}:
        name = argv[0] if argv[0] in known else f"harness.{argv[0]}"
        hint = f"python -m {name}" if name in known else "python -m harness lists the commands"
        cli.fail("harness", f"no command is named by a word here: {hint}")
    rows = [f"  python -m {name}\n      {about}" for name, about in known.items()]
    head = "Finds, forces and explains compile races. The commands, each with --help:"
    cli.show("\n".join([head, "", *rows]))
    return ExitCode.CLEAN


if __name__ == "__main__":
    sys.exit(main())
