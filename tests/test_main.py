"""``python -m harness``: it runs nothing, and says what does."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import commands, main
from harness.exits import ExitCode

ROOT = Path(__file__).parents[1]


def test_every_command_is_listed_with_what_it_does(capsys) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    # A command is a module with a main block, whatever else it is made of.
    entries = {
        f"harness.{path.stem}"
        for path in (ROOT / "harness").glob("*.py")
        if path.stem not in {"__main__", "selftest"}
        and '__name__ == "__main__"' in path.read_text()
    }
    assert set(commands()) == entries
    assert {"harness.run", "harness.watch", "harness.doctor"} <= entries
    for name, about in commands().items():
        assert f"python -m {name}\n      {about}\n" in said
        assert about.endswith(".")


def test_a_list_that_cannot_be_printed_is_one_line(capsys, monkeypatch) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        monkeypatch.setattr(sys, "stdout", full)
        assert main([]) == ExitCode.FAILED
    assert capsys.readouterr().err == "harness: error: stdout: No space left on device\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("run", "python -m harness.run"),
        ("harness.run", "python -m harness.run"),
        ("nonsense", "python -m harness lists the commands"),
    ],
)
def test_a_word_is_not_taken_for_a_command(word, hint) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", word], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"harness: error: no command is named by a word here: {hint}\n"
    assert done.stdout == ""
