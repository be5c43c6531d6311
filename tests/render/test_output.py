"""Printing to somebody who may leave; everything else that goes wrong is not swallowed."""

import errno
import os
import subprocess
import sys

import pytest

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


def test_another_error_of_the_disk_goes_on():
    with pytest.raises(OSError, match="full"), reader_may_leave():
        raise OSError(errno.ENOSPC, "full")


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
