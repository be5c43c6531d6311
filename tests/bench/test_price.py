"""Runs of ``price.py`` shown as one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PRICE = Path(__file__).parent / "price.py"
ABOUT = {"torch": "2.13.0", "device": "CPU", "replaced": ["COMPILE"]}


def written(path, *added, arm="watched", about=ABOUT, clock="a clock"):
    """A file of --json with a process for each percentage that its one arm has added."""
    processes = [{arm: [[100, 100 + percent, 100 + percent, 100]]} for percent in added]
    case = {"name": "step", "case": "training step", "unit": "%", "per": 1, "clock": clock}
    raw = [{**case, "wall_s": 1.0, "processes": processes}]
    path.write_text(json.dumps({"about": about, "rows": [], "raw": raw}))
    return str(path)


def price(*files):
    command = [sys.executable, str(PRICE), "--of", *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_process_of_every_run_has_one_voice(tmp_path) -> None:
    one, other = written(tmp_path / "one", 1, 2), written(tmp_path / "other", 7, 3, 4)
    done = price(one, other)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, line = done.stdout.splitlines()
    assert first == "2 runs, torch 2.13.0, CPU"
    assert line.split()[:3] == ["watched", "+3.00", "%"]
    assert "5 processes" in line


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({"arm": "off"}, "has other arms than the files before it"),
        ({"clock": "another"}, "was measured in another way than the files before it"),
        ({"about": {**ABOUT, "torch": "2.11.0"}}, "runs of different machines or versions"),
    ],
)
def test_runs_that_do_not_go_together_are_refused(tmp_path, differs, said) -> None:
    done = price(written(tmp_path / "one", 1), written(tmp_path / "other", 1, **differs))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(said)
