"""The benches' command lines: help that tells the time, refusals without a traceback."""

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.schedule.outcome import Outcome
from harness.schedule.plan import Plan

HERE = Path(__file__).parent
BAD = {
    "price.py --cases bogus": "invalid choice: 'bogus'",
    "price.py --of /no/such": "there is no file '/no/such'",
    f"price.py --of {HERE / 'price.py'}": "price.py was not written by --json",
    "night.py --scale nan": "a number from 0.0001 to 10 is needed, not nan",
    "endings.py": "--light N or --trainer N",
    "scale.py --events 0": "a whole number from 100",
    "forced.py --plan bogus": "invalid choice: 'bogus'",
    "forced.py --python /no/such": "cannot start the interpreter /no/such",
    "step.py --steps 2 --device cpu": "a whole number from 3",
    "reliability.py --layout 5x3": "--layout '5x3' is not TARGETS+DRAFTERS, such as 5+3",
    "roles.py --layouts 5+0": "--layout 5+0: at least one target and one drafter are needed",
    "step.py --only bogus": "invalid choice: 'bogus'",
    "price_inside.py --device cpu": "python tests/bench/price.py starts it",
}


def bench(words):
    name, *rest = words.split()
    command = [sys.executable, str(HERE / name), *rest]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name",
    [
        *("all", "endings", "forced", "night", "price", "races", "roles", "scale", "scripts"),
        *("search", "step"),
    ],
)
def test_help_says_how_long_it_takes(name):
    done = bench(f"{name}.py --help")
    assert (done.returncode, done.stderr) == (0, "")
    assert any(word in done.stdout for word in ("minute", "hour"))


@pytest.mark.parametrize("words", BAD)
def test_what_does_not_fit_is_refused(words):
    done = bench(words)
    assert done.returncode == 2
    assert BAD[words] in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.fixture
def forced(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("forced")


def test_another_program_can_be_forced(forced, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["-m", "dflash_min.train", "--layout", "5+3"]
    options, python = forced.options_of(["--plan", "stampede", "--", *words], kinds=forced.KINDS)
    bench = forced.Bench("stampede", python, tmp_path, options)
    assert bench._launch(Plan(), tmp_path, 0).command == (python.path, *words)


def test_an_interpreter_that_a_program_names_is_raced(forced, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    named = ["--", sys.executable, "-m", "dflash_min.train"]
    options, python = forced.options_of(named, kinds=forced.KINDS)
    assert (python.path, options.program) == (sys.executable, named[2:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--device cuda", f"--device cuda: torch in {sys.executable} sees no GPU"),
        ("-- nothere.py", "nothere.py: no such script"),
        ("-- -m nothere", f"{sys.executable} has no module named nothere"),
        ("-- /bin/true", "/bin/true is no Python script"),
    ],
)
def test_what_cannot_be_forced_is_refused_before_anything_runs(
    forced, monkeypatch, capsys, words, message
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(forced, "Bench", lambda *_: pytest.fail("it runs"))
    with pytest.raises(SystemExit, match="2"):
        forced.main(words.split())
    assert f": error: {message}" in capsys.readouterr().err.splitlines()[-1]


def test_help_says_what_the_device_is_to_another_program(forced, capsys):
    with pytest.raises(SystemExit, match="0"):
        forced.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "with -- PROGRAM: cuda leaves it the visible GPUs, cpu hides them" in said


def test_a_bench_without_programs_of_its_own_runs_two_threads(forced, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options, python = forced.options_of(["--plan", "stampede"], "about", count=20)
    bench = forced.Bench("stampede", python, tmp_path, options)
    command = bench._launch(Plan(), tmp_path, 0).command
    assert command == (python.path, str(forced.PROGRAM), "stampede", "cpu")


@pytest.fixture
def reliability(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("reliability")


def test_ctrl_c_keeps_the_counts_of_the_runs_that_had_ended(reliability, monkeypatch, capsys):
    right = reliability.Outcome("clean", 2.0, "")
    made = iter([right, right, KeyboardInterrupt, KeyboardInterrupt])  # the last may not begin

    def run_once(expectation, commands):
        outcome = next(made)
        if outcome is KeyboardInterrupt:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(reliability, "run_once", run_once)
    assert reliability.main(["--runs", "4", "--only", "grad"]) == 130
    said = capsys.readouterr()
    assert "grad: 2/2 as expected; clean x2; 2.0 / 2.0 / 2.0 s min/median/max\n" in said.out
    assert said.err == "interrupted: the counts are of the runs that had ended\n"
    made = iter([KeyboardInterrupt])
    assert reliability.main(["--runs", "1", "--only", "no_grad"]) == 130
    assert "no_grad: 0/0 as expected\n" in capsys.readouterr().out


def test_commands_that_are_going_on_are_ended_and_none_begins_after(reliability, tmp_path):
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    commands, codes = reliability.Commands(), []
    script = f"open({str(begun)!r}, 'w').close(); import time; time.sleep(90)"
    thread = threading.Thread(
        target=lambda: codes.append(commands.run([sys.executable, "-c", script])[0]), daemon=True
    )
    thread.start()
    begun.read_bytes()  # until it has opened it
    commands.end()
    thread.join(60)
    assert codes == [-15]
    with pytest.raises(InterruptedError):
        commands.run([sys.executable, "-c", ""])


def test_what_did_not_count_is_told_apart(forced):
    timed_out = Outcome(kind="failed", verdict="incomplete")
    assert forced.name_of(timed_out, timed_out=True) == "timeout"
    for kind in ("impossible", "not reached"):
        assert forced.name_of(Outcome(kind=kind, followed=False), timed_out=False) == kind
    strayed = Outcome(kind="found", codes=("CR901",), followed=False)
    assert forced.name_of(strayed, timed_out=False) == "not followed, CR901"


def test_a_row_counts_the_runs_that_there_were(forced):
    counts = {kind: forced.Count(4) for kind in forced.KINDS}
    counts["forced"].hits, counts["control"].hits = 4, 3
    counts["natural"].others = ["clean"]
    row = forced.Row("stampede", "CR303", "2.13.0", True, counts, 61.0)
    assert row.line().split() == ["stampede", "2.13.0", "4/4", "3/3", "0/1", "61"]
    assert row.details() == [
        "  control: 3 of 4 runs were made",
        "  natural: 1 of 4 runs were made",
    ]
    assert row.right()
    counts["control"].others.append("timeout")
    assert not row.right()
    assert "  control: 1 timeout" in row.details()
    assert row.to_json()["control"]["others"] == {"timeout": 1}
