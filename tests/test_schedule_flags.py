"""Schedules from the command line, on real torch: forced, replayed, not reproduced, searched."""

import json
from pathlib import Path

import pytest

from harness import watch as command
from harness.schedule.results import read_result

PROGRAM = str(Path(__file__).parent.parent / "repro" / "programs" / "two_threads.py")
NOTHING = """
import threading, torch
fast = torch.compile(lambda x: x.sin(), backend="eager")
fast(torch.ones(2))
for _ in range(2):
    thread = threading.Thread(target=fast, args=(torch.ones(2),))
    thread.start()
    thread.join()
"""


def watch(out, *words):
    """Run the command here; what it watches is a process of its own in any case."""
    code = command.main(["--out", str(out), *words])
    reports = sorted(out.glob("*/report.json"))
    return code, json.loads(reports[-1].read_text()) if reports else None


@pytest.fixture(scope="module")
def forced(tmp_path_factory):
    out = tmp_path_factory.mktemp("forced")
    return watch(out, "--schedule", "stampede", "--", PROGRAM, "stampede")


def test_a_named_plan_forces_its_race(forced) -> None:
    code, report = forced
    assert code == 1
    assert "CR303" in {finding["code"] for finding in report["findings"]}
    assert report["not_watched"] == []


def test_its_token_does_it_again(forced, tmp_path) -> None:
    token = forced[1]["replay"].split()[-1]
    code, report = watch(tmp_path, "--schedule-token", token, "--expect", "CR208")
    assert code == 0
    assert report["replay"].split()[-1] == token


def test_its_control_is_clean(tmp_path) -> None:
    code, report = watch(tmp_path, "--schedule", "stampede-serial", "--", PROGRAM, "stampede")
    assert (code, report["verdict"]) == (0, "clean")


def test_a_program_that_does_not_come_by_does_not_reproduce(forced, tmp_path, capsys) -> None:
    token = forced[1]["replay"].split()[-1]
    program = tmp_path / "program.py"
    program.write_text(NOTHING)
    code, _ = watch(tmp_path / "out", "--schedule-token", token, "--", str(program))
    assert code == 4
    assert "did not reproduce: hold 3, B:lock_wait:enter" in capsys.readouterr().err


def test_a_search_finds_and_replays(tmp_path) -> None:
    words = ("--explore", "1", "--strategy", "chaos", "--search-seed", "1", "-j", "1")
    code, _ = watch(tmp_path, *words, "--", PROGRAM, "stampede")
    (path,) = tmp_path.glob("*/search.json")
    result = read_result(path)
    assert len(result.tried) == 1
    assert code == (1 if result.counts["found"] else 0)
