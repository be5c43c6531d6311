"""Reads what comes after ``--``: interpreter options and a program, as ``python`` takes them.

Also what a shell takes: ``python script.py``, and commands that are Python scripts (``torchrun``).
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_min.errors import UsageError
from harness.supervise.executable import (
    INTERPRETER,
    find_command,
    runs_other_code,
    shebang_of,
)

_SWITCHES = frozenset("bBdiOPqRsuvx")
_WITH_VALUE = frozenset("WX")
# -E and -I ignore PYTHONPATH, by which the watch gets in; -S does without sitecustomize.
_SHUT_OUT = frozenset("EIS")
_LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclass(frozen=True)
class Program:
    """Words for the interpreter's command line.

    ``module``: what ``-m`` names, if it is that. ``python``: the interpreter that the program
    itself asks for, as ``python3 script.py`` and a command's first line do; None: any.
    """

    words: tuple[str, ...]
    slug: str
    module: str | None = None
    python: str | None = None


def read_program(words: Sequence[str], python: str | None = None) -> Program:
    """Check the words and find out what they run.

    Args:
        words: what came after ``--``.
        python: the interpreter that is going to be used in any case, beside which commands are
            looked for first; None: the one that the program asks for, if it does.

    Raises:
        UsageError: no program is named, the script does not exist or is not for Python, or an
            option would keep the watch out.
    """
    if not words or not INTERPRETER.fullmatch(Path(words[0]).name):
        return _read(words, python)
    interpreter, *rest = words
    if python is not None:
        raise UsageError(f"leave the interpreter out: -- {shlex.join(rest)} (--python is given)")
    return replace(_read(rest, interpreter), python=interpreter)


def option_that_shuts_out(words: Sequence[str]) -> str:
    """The option of Python's by which a command line keeps the watch out; empty if there is none.

    ``words``: what follows the interpreter.
    """
    value = False
    for word in words:
        if value:
            value = False
            continue
        if word in {"-", "--"} or not word.startswith("-"):
            return ""
        if word.startswith("--"):
            value = word == _LONG_WITH_VALUE
            continue
        for letter in word[1:]:
            if letter in _SHUT_OUT:
                return f"-{letter}"
            if letter in "cm":
                return ""
            if letter in _WITH_VALUE:
                value = word.endswith(letter)
                break
    return ""


def _read(words: Sequence[str], python: str | None) -> Program:
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-":
            return Program(tuple(words), "stdin")
        if not word.startswith("-"):
            return _script(words, index, python)
        if word.startswith("--"):
            if word != _LONG_WITH_VALUE:
                raise UsageError(f"{word} is not an option of Python")
            index += 2
            continue
        program, values = _cluster(words, index)
        if program is not None:
            return program
        index += 1 + values
    raise UsageError("no program is given after --, such as -- script.py or -- -m module")


def _script(words: Sequence[str], index: int, python: str | None) -> Program:
    word = words[index]
    if not word:
        raise UsageError("the program's name after -- is empty")
    path = Path(word)
    if not path.exists():
        found = None if index or "/" in word else find_command(word, python)
        if found is None:
            hint = "" if path.suffix or len(path.parts) > 1 else " (for a module: -- -m NAME)"
            raise UsageError(f"{word}: no such script{hint}")
        return _command(words, found, python)
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"{word}: a folder without __main__.py is no script")
    if path.is_file() and runs_other_code(path):
        raise UsageError(f"{word} is no Python script: the watch gets into Python programs only")
    return Program(tuple(words), path.resolve().stem, python=_asked_for(words, path, python))


def _asked_for(words: Sequence[str], path: Path, python: str | None) -> str | None:
    """The interpreter of a command that is given by its path, such as ``venv/bin/torchrun``."""
    if python is not None or path.suffix or words[0] != str(path) or not os.access(path, os.X_OK):
        return None
    shebang = shebang_of(path) if path.is_file() else None
    return None if shebang is None or shebang.options else shebang.interpreter


def _command(words: Sequence[str], found: Path, python: str | None) -> Program:
    """A command of PATH's, run by its own interpreter with its own options of that."""
    shebang = shebang_of(found)
    if shebang is None:
        raise UsageError(
            f"{words[0]} is {found}, which is no Python script: the watch gets into Python "
            "programs only"
        )
    options = list(shebang.options)
    if options:
        try:
            _read([*options, str(found)], None)
        except UsageError as error:
            raise UsageError(f"{found}: {error}") from None
    everything = (*options, str(found), *words[1:])
    return Program(everything, found.stem, python=python or shebang.interpreter)


def _cluster(words: Sequence[str], index: int) -> tuple[Program | None, int]:
    """Read a word such as ``-uWdefault``: a program if it names one; how many values follow it."""
    letters = words[index][1:]
    for at, letter in enumerate(letters, start=1):
        if letter in _SHUT_OUT:
            raise UsageError(
                f"python -{letter} keeps the watch out: it ignores PYTHONPATH or sitecustomize"
            )
        value = letters[at:] or (words[index + 1] if index + 1 < len(words) else None)
        if letter in "cm":
            if value is None:
                raise UsageError(f"python -{letter} needs an argument")
            if letter == "m" and not value.strip():
                raise UsageError("the module's name after -m is empty")
            return _named(words, letter, value), 0
        if letter in _WITH_VALUE:
            return None, 0 if letters[at:] else 1
        if letter not in _SWITCHES:
            raise UsageError(f"-{letter} names no program to watch")
    return None, 0


def _named(words: Sequence[str], letter: str, value: str) -> Program:
    if letter == "c":
        return Program(tuple(words), "command")
    return Program(tuple(words), value, module=value)
