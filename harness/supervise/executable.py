"""Python scripts that are commands: found on PATH as a shell does, their interpreter read off them.

Console scripts that installers write, such as ``torchrun``, name their interpreter in the first
line. Where its path is too long for that or holds a space, the first lines are a shell's instead:
``#!/bin/sh`` and ``'''exec' "/path/of/python" "$0" "$@"``.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

INTERPRETER = re.compile(r"python[\d.]*")
_HEAD = 4096
_SHELL_EXEC = re.compile(
    rb"""^'''exec'\s+("?)(?P<python>.+?)\1\s+"\$0"\s+"\$@"\s*$""", re.MULTILINE
)


@dataclass(frozen=True)
class Shebang:
    """The interpreter that a script names, and the options that it gives it."""

    interpreter: str
    options: tuple[str, ...] = ()


def find_command(name: str, beside: str | None = None) -> Path | None:
    """Return the file that a shell would run for a bare name; None if there is none.

    Args:
        name: without a folder.
        beside: an interpreter whose folder is looked into first.
    """
    python = None if beside is None else shutil.which(beside)
    folders = [] if python is None else [str(Path(python).parent)]
    path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    return None if found is None else Path(found)


def shebang_of(path: Path) -> Shebang | None:
    """Return what a script's first line names if that is Python; None if it names none."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first = os.fsdecode(head[2:].partition(b"\n")[0]).strip()
    folder, _, name = first.rpartition("/")
    if folder and name == "sh":
        told = _SHELL_EXEC.search(head)
        return None if told is None else Shebang(os.fsdecode(told["python"]))
    return _words(first)


def runs_other_code(path: Path) -> bool:
    """Whether an executable file is for something else than Python: a binary, another script."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError:
        return False
    if head.startswith(b"\x7fELF"):
        return True
    return head.startswith(b"#!") and os.access(path, os.X_OK) and shebang_of(path) is None


def _words(line: str) -> Shebang | None:
    # The kernel splits once; env -S splits the rest, and a path with spaces is not possible.
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or not INTERPRETER.fullmatch(Path(words[0]).name):
        return None
    return Shebang(words[0], tuple(words[1:]))
