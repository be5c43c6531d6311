"""Says which commands there are: ``python -m harness`` runs none itself."""

import ast
import sys
from pathlib import Path

from dflash_min.cli import fail
from harness.exits import ExitCode

_FOLDER = Path(__file__).parent


def commands() -> dict[str, str]:
    """Every command's name, such as ``harness.run``, with the first line of its description."""
    found = {}
    for path in sorted(_FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Assign) and _is_name(node) for node in tree.body):
            found[f"harness.{path.stem}"] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def _is_name(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "PROG" for target in node.targets)


def main(argv: list[str]) -> int:
    """Print the commands; returns the exit code, 2 if one was meant to be run."""
    known = commands()
    if argv and argv[0] not in {"-h", "--help"}:
        name = argv[0] if argv[0] in known else f"harness.{argv[0]}"
        hint = f"python -m {name}" if name in known else "python -m harness lists the commands"
        fail("harness", f"no command is named by a word here: {hint}")
    print("Finds, forces and explains compile races. The commands, each with --help:\n")
    for name, about in known.items():
        print(f"  python -m {name}\n      {about}")
    return ExitCode.CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
