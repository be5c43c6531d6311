"""What comes after ``--``."""

import shlex
import sys
import zipfile

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
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in COMMANDS.items():
        (bin_folder / name).write_bytes(text.encode())
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))


COMMANDS = {
    "launch": "#!/their/venv/bin/python3.12\nmain()\n",
    "by-env": "#!/usr/bin/env python3\n",
    "with-option": "#!/usr/bin/python3 -sP\n",
    "by-env-split": "#!/usr/bin/env -S python3 -u\n",
    "far": "#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''\n",
    "isolated": "#!/usr/bin/python3 -I\n",
    "shell": "#!/bin/sh\nexec python train.py\n",
    "binary": "\x7fELF",
    "bare": "no first line\n",
}

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


FOUND = {
    "launch --n 2": ("/their/venv/bin/python3.12", "BIN/launch --n 2"),
    "by-env": ("python3", "BIN/by-env"),
    "with-option x": ("/usr/bin/python3", "-sP BIN/with-option x"),
    "by-env-split": ("python3", "-u BIN/by-env-split"),
    "far -I": ("/a b/bin/python", "BIN/far -I"),
    "bin/launch --n 2": ("/their/venv/bin/python3.12", "bin/launch --n 2"),
    "python3 -u train.py --x": ("python3", "-u train.py --x"),
    "/usr/bin/python3.11 -m pack": ("/usr/bin/python3.11", "-m pack"),
    "app.pyz": (None, "app.pyz"),
    "-P train.py": (None, "-P train.py"),
    "./train.py": (None, "./train.py"),
}


@pytest.mark.parametrize("words", FOUND)
def test_commands_and_interpreters_are_taken_as_a_shell_takes_them(words, tmp_path) -> None:
    python, expected = FOUND[words]
    program = read_program(words.split())
    assert program.python == python
    assert " ".join(program.words) == expected.replace("BIN", str(tmp_path / "bin"))


def test_a_given_interpreter_stands_and_its_own_commands_come_first(tmp_path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    for name in ("python", "launch"):
        (venv / name).write_bytes(b"#!/usr/bin/python3\n")
        (venv / name).chmod(0o755)
    program = read_program(["launch"], str(venv / "python"))
    assert program.words == (str(venv / "launch"),)
    assert program.python == str(venv / "python")
    assert read_program(["train.py"], sys.executable).python is None


REFUSED = {
    "": "no program is given after --",
    "-u": "no program is given after --",
    "-X dev": "no program is given after --",
    "absent.py": "absent.py: no such script$",
    "empty": "empty: a folder without __main__.py is no script",
    "isolated x": "bin/isolated: python -I keeps the watch out",
    "shell": "shell is .*bin/shell, which is no Python script: ",
    "bin/shell": "bin/shell is no Python script: the watch gets into Python programs only",
    "binary": "which is no Python script",
    "bin/binary": "is no Python script",
    "bare": "which is no Python script",
    "python": "no program is given after --",
    "python python train.py": "python: no such script",
    "python -E train.py": "python -E keeps the watch out",
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


NAMELESS = {
    ("",): "the program's name after -- is empty",
    ("-u", ""): "the program's name after -- is empty",
    ("python", ""): "the program's name after -- is empty",
    ("-m", ""): "the module's name after -m is empty",
    ("-um", " "): "the module's name after -m is empty",
}


@pytest.mark.parametrize("words", NAMELESS, ids=shlex.join)
def test_an_empty_name_is_refused(words) -> None:
    with pytest.raises(UsageError, match=NAMELESS[words]):
        read_program(words)


def test_two_interpreters_are_one_too_many() -> None:
    with pytest.raises(UsageError, match=r"leave the interpreter out: -- train.py"):
        read_program(["python", "train.py"], "/their/python")
