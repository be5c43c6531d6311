"""Schedules in real processes, from search to replay."""

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_min.errors import UsageError
from harness.events.files import HARNESS_FAILURE
from harness.events.run import Run
from harness.schedule.arrivals import arrivals
from harness.schedule.minimise import Case, minimise
from harness.schedule.outcome import Stopped
from harness.schedule.plan import Plan, parse_plan, serial
from harness.schedule.replay import first_difference
from harness.schedule.results import RESULTS, read_result
from harness.schedule.runner import ProcessRunner
from harness.schedule.search import Search, SearchOptions
from harness.schedule.strategies.enumerate import Enumerate
from harness.schedule.strategies.pct import Pct
from harness.supervise.launch import SITE, Launch, WatchSettings
from harness.timeline.recording import Recording

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FORCED = parse_plan(
    ["A:fx_trace:enter", "B:wrapper:enter", "B:wrapper:exit", "A:fx_trace:exit"], name="flag"
)


@dataclass(frozen=True)
class Unwatched(Launch):
    """Starts a program that records by itself."""

    def environment(self, settings):
        environment = super().environment(settings)
        return {
            **environment,
            "PYTHONPATH": environment["PYTHONPATH"].replace(str(SITE), str(ROOT)),
        }


def launch(schedule, folder, slot, patience_s=100.0):
    program = str(HERE / "racing_program.py")
    return Unwatched(
        command=(sys.executable, program, json.dumps(schedule.for_child()), str(patience_s)),
        folder=folder,
        watch=WatchSettings(),
        timeout_s=150.0,
        log=folder / "child.log",
    )


@pytest.fixture
def runner(tmp_path):
    return ProcessRunner(tmp_path, launch, lambda schedule: Run(prog="test", replay=str(schedule)))


def log(tmp_path, outcome):
    return (tmp_path / outcome.folder / "child.log").read_text()


def test_a_forced_race_happens_each_time_and_its_control_is_clean_each_time(
    runner, tmp_path
) -> None:
    for _ in range(3):
        outcome = runner.run(FORCED, 0)
        assert outcome.kind == "found", (outcome, log(tmp_path, outcome))
        assert outcome.roots == ("CR301",)
        assert first_difference(FORCED, timeline(tmp_path, outcome)) is None
        control = runner.run(serial(FORCED), 0)
        assert (control.kind, control.verdict) == ("clean", "clean"), control


def timeline(tmp_path, outcome):
    return Recording(tmp_path / outcome.folder).timelines()[0]


def test_what_was_found_says_which_holds_force_it(runner, tmp_path) -> None:
    outcome = runner.run(FORCED, 0)
    assert all(len(plan.threads) == 2 for plan in outcome.plans)
    assert outcome.plans[-1] == FORCED
    again = runner.run(outcome.plans[0], 0)
    assert again.signature == outcome.signature


def test_a_hold_that_nobody_comes_to_is_not_reached(tmp_path) -> None:
    runner = ProcessRunner(tmp_path, functools.partial(launch, patience_s=2.0))
    outcome = runner.run(parse_plan(["A:step:enter", "B:wrapper:enter"]), 0)
    assert outcome.kind == "not reached"
    assert "A:step:enter was not reached" in outcome.headline


def test_each_run_has_a_folder_and_a_dropped_one_is_gone(runner, tmp_path) -> None:
    outcome = runner.run(FORCED, 0)
    folder = tmp_path / outcome.folder
    assert {"events.jsonl", "report.json", "run.json", "ended.json"} <= {
        path.name for path in folder.iterdir()
    }
    runner.drop(outcome)
    assert not folder.exists()


def test_a_program_that_cannot_be_started_leaves_nothing(tmp_path) -> None:
    def missing(schedule, folder, slot):
        return Launch(
            command=("/nonexistent/python",),
            folder=folder,
            watch=WatchSettings(),
            timeout_s=5.0,
        )

    with pytest.raises(UsageError, match="cannot start"):
        ProcessRunner(tmp_path, missing).run(FORCED, 0)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_stopped_ends_its_process(tmp_path) -> None:
    def endless(schedule, folder, slot):
        runner.stop()  # as Ctrl-C does while it runs
        return Launch(
            command=(sys.executable, "-c", "import time; time.sleep(600)"),
            folder=folder,
            watch=WatchSettings(),
            timeout_s=500.0,
        )

    runner = ProcessRunner(tmp_path, endless)
    with pytest.raises(Stopped):
        runner.run(FORCED, 0)
    assert not list(tmp_path.iterdir())


def test_search_finds_the_race_from_a_recording_alone_and_minimises_it(runner, tmp_path) -> None:
    natural = runner.run(Plan(), 0)
    reached = arrivals(Recording(tmp_path / natural.folder))
    strategy = Enumerate(reached, max_holds=3, bound=20)
    options = SearchOptions(bound=20, jobs=2, stop_after=1)
    path = tmp_path / RESULTS
    result = Search(strategy, runner, options, path=path).run()
    (reported,) = result.reported
    assert reported.roots == ("CR301",)
    # Of a schedule with few holds the rest is left to chance, and its repeats are counted.
    assert reported.said in {"1 of 2", "2 of 2"}
    assert reported.after_cpu_s > 0
    assert read_result(path).reported == result.reported
    left = {folder.name for folder in tmp_path.iterdir() if folder.is_dir()}
    clean = [tried for tried in result.tried if tried.kind == "clean"]
    assert all(not tried.folder for tried in clean)
    assert {tried.folder for tried in result.tried if tried.kind == "found"} <= left

    again = ProcessRunner(tmp_path, launch)
    wanted = again.run(FORCED, 0)
    smallest = minimise(Case(FORCED, None), wanted, lambda _: again)
    assert smallest.state == "minimal"
    assert smallest.roots == {"CR301"}
    assert len(smallest.smallest.plan.holds) <= 3


def test_random_priorities_run_to_the_end(runner, tmp_path) -> None:
    schedule = next(Pct(2, 8, depth=3, seed=1).schedules())
    outcome = runner.run(schedule, 0)
    assert outcome.kind in {"found", "clean"}
    assert timeline(tmp_path, outcome).schedule.state == "done"
    assert first_difference(schedule, timeline(tmp_path, outcome)) is None


def test_a_run_whose_diagnosis_fails_keeps_its_folder(runner, tmp_path, monkeypatch) -> None:
    def broken(recording):
        raise ArithmeticError("no diagnosis")

    monkeypatch.setattr("harness.schedule.runner.diagnose", broken)
    outcome = runner.run(Plan(), 0)
    assert (outcome.kind, outcome.headline) == ("failed", "ArithmeticError: no diagnosis")
    assert outcome.verdict == "failed"
    assert (tmp_path / outcome.folder / "events.jsonl").exists()
    assert "no diagnosis" in (tmp_path / outcome.folder / HARNESS_FAILURE).read_text()
