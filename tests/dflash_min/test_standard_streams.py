"""Standard streams that are closed or take nothing more: no command's exit code is their fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_min import __main__ as listing
from dflash_min import cli, export, generate, pretrain, regenerate, standard_streams, train
from dflash_min.command import command

MODULES = [pretrain, train, export, generate, regenerate]


@pytest.fixture
def full():
    with Path("/dev/full").open("w") as stream:
        yield stream
        standard_streams.drop(stream)


def code_of(main, *words: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    return caught.value.code


@pytest.mark.parametrize("module", MODULES)
def test_help_without_a_stdout_is_printed_to_nobody(module, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert code_of(module.main, "--help") == 0
    assert sys.stdout is None
    assert capsys.readouterr().err == ""


def test_the_list_without_a_stdout_is_printed_to_nobody(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    listing.main([])
    assert sys.stdout is None


@pytest.mark.parametrize("module", MODULES)
def test_an_error_of_use_is_one_whoever_hears_of_it(module, monkeypatch, capsys, full) -> None:
    monkeypatch.setattr(sys, "stderr", full)
    assert code_of(module.main, "--nonsense") == 2
    full.flush()  # as the interpreter does at its exit
    monkeypatch.setattr(sys, "stderr", None)
    assert code_of(module.main, "--nonsense") == 2
    assert capsys.readouterr().out == ""  # print() takes stdout where its file is None


def test_work_goes_on_where_stderr_takes_nothing(monkeypatch, full) -> None:
    @command("prog")
    def main() -> str:
        for _ in range(10_000):  # more than the stream holds back
            cli.say("prog", "a line")
        return "done"

    monkeypatch.setattr(sys, "stderr", full)
    assert main() == "done"
    full.flush()


def test_stderr_that_takes_something_again_is_told_the_rest(tmp_path, monkeypatch, full) -> None:
    monkeypatch.setattr(sys, "stderr", full)
    standard_streams.tell("lost or late")
    with (tmp_path / "log").open("w") as log:
        os.dup2(log.fileno(), full.fileno())
    standard_streams.tell("afterwards")
    assert (tmp_path / "log").read_text().endswith("afterwards\n")


CLOSED = """
import os, subprocess, sys
from dflash_min.standard_streams import usable
with usable():
    file = open(sys.argv[1], "w")
    print("nobody", "reads", "this")
    os.write(1, b"nor this")
    os.write(2, b"nor that")
    see = "import os, sys; sys.exit(sum(map(os.path.exists, ('/dev/fd/1', '/dev/fd/2'))))"
    started = subprocess.run([sys.executable, "-c", see]).returncode
    print(file.fileno() > 2, sys.stdin, started, file=file)
file.close()
"""


def test_closed_descriptors_are_not_taken_by_files_and_stay_closed_in_programs(tmp_path) -> None:
    out = tmp_path / "out"
    shell = f'{sys.executable} -c "$CLOSED" {out} <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", shell], env={**os.environ, "CLOSED": CLOSED}, check=False)
    assert done.returncode == 0
    assert out.read_text() == "True None 0\n"
