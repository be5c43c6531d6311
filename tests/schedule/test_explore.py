"""A search as a command, against a simulated program: what it says and its exit code."""

import sys

import pytest

from harness.exits import ExitCode
from harness.schedule.explore import Explored, explore
from harness.schedule.options import ScheduleOptions
from harness.schedule.outcome import Outcome

from .program import Program


class Scripted(Program):
    """Gives the outcomes in turn, whatever the schedule; an exception is raised."""

    def __init__(self, *outcomes):
        super().__init__()
        self.outcomes = outcomes

    def outcome(self, schedule, number):
        found = self.outcomes[number - 1]
        if isinstance(found, Exception):
            raise found
        return found


CLEAN = Outcome(kind="clean", verdict="clean")
FOUND = Outcome(kind="found", verdict="found", roots=("CR301",), headline="FOUND it")
CUT = Outcome(kind="incomplete", verdict="incomplete", headline="it was still busy")
BROKEN = ArithmeticError("no diagnosis")


def explored(tmp_path, *outcomes, runs):
    return explore(
        Explored(
            prog="harness.run",
            slug="it",
            out=tmp_path,
            options=ScheduleOptions(explore=runs, strategy="chaos", search_seed=1),
            spec=None,
            runner_for=lambda spec, folder: Scripted(*outcomes),
            token_of=lambda spec, schedule: "",
            parts_of=lambda spec: None,
            interpreter=sys.executable,
        )
    )


@pytest.mark.parametrize(
    ("outcomes", "runs", "code"),
    [
        ((CLEAN, CLEAN), 2, ExitCode.CLEAN),
        ((CLEAN, CUT), 2, ExitCode.INCOMPLETE),
        ((CUT, FOUND, FOUND, FOUND), 2, ExitCode.FOUND),
        ((CLEAN, BROKEN), 2, ExitCode.FAILED),
        ((FOUND, FOUND, FOUND, BROKEN), 2, ExitCode.FAILED),
        ((FOUND, FOUND, BROKEN), 1, ExitCode.FAILED),
    ],
    ids=["clean", "cut short", "found", "failed", "found and failed", "failed in a replay"],
)
def test_the_exit_code(tmp_path, capsys, outcomes, runs, code) -> None:
    assert explored(tmp_path, *outcomes, runs=runs) == code
    said = capsys.readouterr().out
    assert ("the harness failed" in said) == (code is ExitCode.FAILED)
    assert ("CR301" in said) == (FOUND in outcomes)


def test_a_find_that_cannot_be_printed_is_a_find(tmp_path, monkeypatch, capsys) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        monkeypatch.setattr(sys, "stdout", full)
        assert explored(tmp_path, CUT, FOUND, FOUND, FOUND, runs=2) == ExitCode.FOUND
        full.flush()  # as the interpreter does at its exit
    said = "harness.run: the report cannot be printed: No space left on device\n"
    assert capsys.readouterr().err.endswith(said)
