"""Reads what comes after ``--``: interpreter options and a program, as ``python`` takes them."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError

_SWITCHES = frozenset("bBdiOPqRsuvx")
_WITH_VALUE = frozenset("WX")
# -E and -I ignore PYTHONPATH, by which the watch gets in; -S does without sitecustomize.
_SHUT_OUT = frozenset("EIS")
_INTERPRETER = re.compile(r"python[\d.]*")
_LONG_WITH_VALUE = "--check-hash-based-pycs"


@dataclass(frozen=True)
class Program:
    """Words for the interpreter's command line. ``module``: what ``-m`` names, if it is that."""

    words: tuple[str, ...]
    slug: str
    module: str | None = None


def read_program(words: Sequence[str]) -> Program:
    """Check the words and find out what they run.

    Raises:
        UsageError: no program is named, the script does not exist, or an option would keep the
            watch out.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-":
            return Program(tuple(words), "stdin")
        if not word.startswith("-"):
            return _script(words, word)
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


def _script(words: Sequence[str], word: str) -> Program:
    path = Path(word)
    if _INTERPRETER.fullmatch(path.name) and len(words) > words.index(word) + 1:
        rest = shlex.join(words[words.index(word) + 1 :])
        raise UsageError(f"leave the interpreter out: -- {rest} (another one: --python {word})")
    if not path.exists():
        hint = "" if path.suffix or len(path.parts) > 1 else " (for a module: -- -m NAME)"
        raise UsageError(f"{word}: no such script{hint}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"{word}: a folder without __main__.py is no script")
    return Program(tuple(words), path.resolve().stem)


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
