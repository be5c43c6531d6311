"""Says which commands there are: `python -m dflash_min` runs none itself."""

from __future__ import annotations

import sys
from pathlib import Path

from dflash_min import cli
from dflash_min.command import command, commands

_FOLDER = Path(__file__).parent


@command("dflash_min")
def main(argv: list[str]) -> None:
    """Print the commands. Raises SystemExit(2) if one was meant to be run."""
    known = commands("dflash_min", _FOLDER)
    if argv and argv[0] not in {"-h", "--help"}:
        name = f"dflash_min.{argv[0]}"
        hint = f"python -m {name}" if name in known else "python -m dflash_min lists the commands"
        cli.fail("dflash_min", f"no command is named by a word here: {hint}")
    rows = [f"  python -m {name}\n      {about}" for name, about in known.items()]
    cli.show("Trains drafters by DFlash. The commands, each with --help:\n\n" + "\n".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
