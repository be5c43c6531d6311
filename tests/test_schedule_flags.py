"""Schedules from the command line, on real torch: forced, replayed, not reproduced, searched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run(
        [sys.executable, "-m", "harness.watch", "--out", str(out), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    reports = sorted(out.glob("*/report.json"))
    return done, json.loads(reports[-1].read_text()) if reports else None


@pytest.fixture(scope="module")
def forced(tmp_path_factory):
    out = tmp_path_factory.mktemp("forced")
    return watch(out, "--schedule", "stampede", "--", PROGRAM, "stampede")


def test_a_named_plan_forces_its_race(forced) -> None:
    done, report = forced
    assert done.returncode == 1, done.stderr
    assert "CR303" in {finding["code"] for finding in report["findings"]}
    assert report["not_watched"] == []


def test_its_token_does_it_again(forced, tmp_path) -> None:
    token = forced[1]["replay"].split()[-1]
    done, report = watch(tmp_path, "--schedule-token", token, "--expect", "CR208")
    assert done.returncode == 0, done.stderr
    assert report["replay"].split()[-1] == token


def test_its_control_is_clean(tmp_path) -> None:
    done, report = watch(tmp_path, "--schedule", "stampede-serial", "--", PROGRAM, "stampede")
    assert (done.returncode, report["verdict"]) == (0, "clean"), done.stderr


def test_a_program_that_does_not_come_by_does_not_reproduce(forced, tmp_path) -> None:
    token = forced[1]["replay"].split()[-1]
    program = tmp_path / "program.py"
    program.write_text(NOTHING)
    done, _ = watch(tmp_path / "out", "--schedule-token", token, "--", str(program))
    assert done.returncode == 4
    assert "did not reproduce: hold 3, B:lock_wait:enter" in done.stderr


def test_a_search_finds_and_replays(tmp_path) -> None:
    words = ("--explore", "1", "--strategy", "chaos", "--search-seed", "1", "-j", "1")
    done, _ = watch(tmp_path, *words, "--", PROGRAM, "stampede")
    (path,) = tmp_path.glob("*/search.json")
    result = read_result(path)
    assert len(result.tried) == 1
    assert done.returncode == (1 if result.counts["found"] else 0)
