"""What comes after ``--``."""

import pytest

from dflash_min.errors import UsageError
from harness.supervise.program import read_program


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    (tmp_path / "empty").mkdir()


ACCEPTED = {
    "train.py": ("train", None),
    "train.py -I --x": ("train", None),
    "app": ("app", None),
    "-m pack.train --lr 1": ("pack.train", "pack.train"),
    "-mpack": ("pack", "pack"),
    "-c pass": ("command", None),
    "-": ("stdin", None),
    "-u -X dev -Wignore -W error train.py": ("train", None),
    "-uXdev -OOm pack": ("pack", "pack"),
    "--check-hash-based-pycs always train.py": ("train", None),
}


@pytest.mark.parametrize("words", ACCEPTED)
def test_accepted(words) -> None:
    program = read_program(words.split())
    assert program.words == tuple(words.split())
    assert (program.slug, program.module) == ACCEPTED[words]


REFUSED = {
    "": "no program is given after --",
    "-u": "no program is given after --",
    "-X dev": "no program is given after --",
    "absent.py": "absent.py: no such script$",
    "empty": "empty: a folder without __main__.py is no script",
    "torchrun train.py": r"torchrun: no such script \(for a module: -- -m NAME\)",
    "-I train.py": "python -I keeps the watch out",
    "-uE train.py": "python -E keeps the watch out",
    "-Sm pack": "python -S keeps the watch out",
    "-m": "python -m needs an argument",
    "-V": "-V names no program",
    "--version": "--version is not an option",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words) -> None:
    with pytest.raises(UsageError, match=REFUSED[words]):
        read_program(words.split())
