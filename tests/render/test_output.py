"""Printing to somebody who may leave; everything else that goes wrong is not swallowed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_min.errors import OutputError
from harness.render.output import reader_may_leave


def test_an_exit_that_is_meant_goes_on():
    with pytest.raises(SystemExit) as caught, reader_may_leave():
        raise SystemExit(3)
    assert caught.value.code == 3


def give_up():
    try:
        os.write(-1, b"x")
    except OSError:
        raise SystemExit(3)  # noqa: B904 - as a program may do


def test_so_does_an_exit_raised_while_another_error_was_handled():
    with pytest.raises(SystemExit), reader_may_leave():
        give_up()


FULL = OSError(errno.ENOSPC, "full")


def test_a_full_disk_is_told_of_where_it_keeps_what_is_printed_from_everybody() -> None:
    with pytest.raises(OutputError, match="full"), reader_may_leave():
        raise FULL
    said: list[str] = []
    with reader_may_leave(kept=said.append):
        raise FULL
    assert said == ["the report cannot be printed: full"]


def test_a_file_that_cannot_be_opened_is_not_the_stream() -> None:
    with pytest.raises(FileNotFoundError), reader_may_leave(kept=pytest.fail):
        Path("/nowhere/at/all").read_bytes()


def test_a_reader_of_rich_that_has_left_ends_nothing():
    program = """
from rich.console import Console
from harness.render.output import reader_may_leave
import sys
with reader_may_leave():
    Console().print("line\\n" * 100_000)
print("went on", file=sys.stderr)
sys.exit(7)
"""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (7, "went on\n")
