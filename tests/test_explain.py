"""``python -m harness.explain``: every cause, near matches, and no torch."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from harness.causes import CAUSES
from harness.explain import explanations, main, print_explanation

ROOT = Path(__file__).parents[1]
EXPLANATIONS = explanations()


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_every_cause_is_explained_in_full(code):
    file = io.StringIO()
    print_explanation(EXPLANATIONS[code], Console(file=file, width=80))
    text = file.getvalue()
    assert text.startswith(f"{code} {EXPLANATIONS[code].title}\n")
    for heading in (
        "What happens",
        "Why",
        "Evidence needed",
        "Remedy",
        "Torch versions",
        "Public threads",
        "Probes it needs",
    ):
        body = text.split(f"\n{heading}\n", 1)[1].split("\n\n", 1)[0]
        assert body.strip(), heading


def test_list_has_every_cause_once_in_order(capsys):
    assert main(["--list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == sorted([cause.EXPLANATION.code, cause.EXPLANATION.title] for cause in CAUSES)


@pytest.mark.parametrize("word", ["CR101", "cr101", "101", "grad-mode", "GRAD-mode"])
def test_a_cause_is_found_by_code_or_name(word, capsys):
    assert main([word]) == 0
    assert capsys.readouterr().out.startswith("CR101 grad-mode\n")


def test_json(capsys):
    assert main(["CR303", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["code"] == "CR303"
    assert {"title", "what", "why", "evidence", "remedy", "versions", "upstream"} <= one.keys()
    assert main(["--list", "--json"]) == 0
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == list(EXPLANATIONS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CR120"], "unknown cause 'CR120'; nearest: CR107 config-per-thread, CR106"),
        (["cr2010"], "unknown cause 'cr2010'; nearest: CR90"),
        (["grad-mod"], "nearest: CR101 grad-mode"),
        (["what is this"], "unknown cause 'what is this'; see --list"),
        (["CR101", "\x1b[31m\n"], "unknown cause"),
        ([], "name a cause, such as CR101, or give --list"),
        (["CR101", "--list"], "--list lists every cause: leave it or CR101 out"),
        (["--colour"], "--colour"),
    ],
)
def test_an_error_of_use_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert "\x1b" not in captured.err


@pytest.fixture
def without_torch(tmp_path):
    """An environment in which importing torch fails."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')", encoding="utf-8")
    return os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize("arguments", [["CR101"], ["--list"], ["CR101", "--json"]])
def test_works_without_torch(arguments, without_torch):
    done = subprocess.run(
        [sys.executable, "-m", "harness.explain", *arguments],
        env=without_torch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "CR101" in done.stdout


def test_a_report_is_made_without_torch(without_torch, tmp_path):
    recording = ROOT / "tests" / "recordings" / "grad_mode"
    for file in recording.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "harness.report", str(tmp_path)],
        env=without_torch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("FOUND")


def test_a_reader_may_leave_early(without_torch):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "harness.explain", "--list"],
        env=without_torch,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
