"""Search, against a simulated program with a known bug."""

import threading

import msgspec
import pytest

from dflash_min.errors import UsageError
from harness.schedule.bar import Bar
from harness.schedule.outcome import Outcome, Stopped
from harness.schedule.plan import parse_plan
from harness.schedule.results import RESULTS, SearchResult, read_result
from harness.schedule.search import Search, SearchOptions
from harness.schedule.strategies.chaos import Chaos

from .program import BUG, Program

CLEAN = parse_plan(["A:step:enter", "B:step:enter"])
BAD = parse_plan(BUG)
LONGER = parse_plan([*BUG, "B:step:enter"])
NEVER = parse_plan(["A:dynamo_compile:enter", "B:dynamo_compile:enter", "A:dynamo_compile:exit"])


class Listed:
    """A strategy that is a list."""

    name = "given"

    def __init__(self, *plans):
        self.plans = plans

    def describe(self):
        return f"{len(self.plans)} plans"

    def schedules(self):
        return iter(self.plans)


def search(strategy, program, **options):
    rest = {k: options.pop(k) for k in ("path", "on_change", "on_find", "token_of") if k in options}
    return Search(strategy, program, SearchOptions(**{"bound": 100, **options}), **rest)


def test_runs_are_counted_by_what_became_of_them() -> None:
    program = Program(impossible=frozenset({NEVER.texts}))
    result = search(Listed(CLEAN, NEVER, BAD, CLEAN), program).run()
    assert result.counts == {
        "found": 1,
        "clean": 2,
        "not reached": 0,
        "impossible": 1,
        "incomplete": 0,
        "failed": 0,
    }
    assert [tried.number for tried in result.tried] == [1, 2, 3, 4]
    assert result.complete
    counts = "found 1 · clean 2 · not reached 0 · impossible 1 · incomplete 0 · failed 0"
    assert result.said == counts


def test_what_is_found_is_replayed_twice_with_the_tightest_plan() -> None:
    program = Program(plans=(NEVER, LONGER))
    tokens = []
    result = search(
        Listed(CLEAN, BAD), program, token_of=lambda s: tokens.append(s) or "crh1.x"
    ).run()
    (reported,) = result.reported
    assert reported.schedule.holds == LONGER.texts
    assert reported.said == "2 of 2"
    assert (reported.after_runs, reported.number) == (2, 2)
    assert reported.token == "crh1.x"
    assert tokens == [LONGER]
    # The plan that did not force it was given its two runs as well.
    assert [schedule for schedule, _ in program.runs] == [CLEAN, BAD, NEVER, NEVER, LONGER, LONGER]


def test_a_find_that_comes_once_in_two_says_so() -> None:
    program = Program(missed=frozenset({3}))
    (reported,) = search(Listed(CLEAN, BAD), program).run().reported
    assert reported.said == "1 of 2"


def test_a_find_without_holds_is_replayed_as_it_was() -> None:
    program = Program(bug=("chaos, seed 2",))
    result = search(Chaos(0), program, bound=4).run()
    (reported,) = result.reported
    assert (reported.schedule.strategy, reported.schedule.seed) == ("chaos", 2)
    assert reported.said == "2 of 2"
    assert result.complete
    assert len(result.tried) == 4


def test_one_schedule_is_reported_for_one_set_of_roots() -> None:
    program = Program()
    result = search(Listed(BAD, LONGER, BAD), program).run()
    assert len(result.reported) == 1
    assert result.counts["found"] == 3
    both = search(Listed(BAD, LONGER, BAD), Program(), each=2).run()
    assert [r.schedule.holds for r in both.reported] == [BAD.texts, LONGER.texts]


def test_it_ends_once_enough_is_found() -> None:
    program = Program()
    result = search(Listed(BAD, *[CLEAN] * 50), program, stop_after=1).run()
    assert len(result.tried) == 1
    assert not result.complete


def test_it_begins_nothing_after_its_time() -> None:
    result = search(Listed(*[CLEAN] * 5), Program(), limit_s=-1.0).run()
    assert not result.tried
    assert not result.complete


def test_folders_of_clean_schedules_are_dropped_and_others_kept() -> None:
    program = Program()
    search(Listed(CLEAN, BAD, CLEAN), program).run()
    first, *replays, last = program.dropped
    assert (first, last) == ("run-1", "run-5")
    assert replays == ["run-3", "run-4"]
    assert "run-2" not in program.dropped


def test_one_runs_failure_is_one_failed_run() -> None:
    program = Program(crashing=frozenset({NEVER.texts}))
    result = search(Listed(NEVER, CLEAN), program).run()
    assert result.counts["failed"] == 1
    assert result.tried[0].headline == "RuntimeError: the report failed"
    assert result.complete


def test_a_program_that_cannot_be_started_is_an_error_of_use() -> None:
    class Missing(Program):
        def outcome(self, schedule, number):
            raise UsageError("cannot start it")

    with pytest.raises(UsageError, match="cannot start it"):
        search(Listed(CLEAN), Missing()).run()


def test_jobs_run_side_by_side_each_in_its_own_slot() -> None:
    meet = threading.Barrier(3)

    class Meeting(Program):
        def outcome(self, schedule, number):
            meet.wait(60)  # breaks unless three runs are going on
            return super().outcome(schedule, number)

    program = Meeting()
    result = search(Listed(*[CLEAN] * 6), program, jobs=3).run()
    assert result.counts["clean"] == 6
    assert program.most_at_once == 3
    assert {slot for _, slot in program.runs} == {0, 1, 2}


def test_the_result_is_on_the_disk_after_each_run(tmp_path) -> None:
    path = tmp_path / RESULTS
    seen = []

    def look(result):
        seen.append(len(read_result(path).tried))

    search(Listed(CLEAN, BAD, CLEAN), Program(), path=path, on_change=look).run()
    assert {1, 2, 3} <= set(seen)
    result = read_result(path)
    assert result.complete
    assert [tried.kind for tried in result.tried] == ["clean", "found", "clean"]
    assert result.reported[0].schedule.holds == BAD.texts
    assert msgspec.json.decode(path.read_bytes())["schema"] == 1


def test_a_search_that_is_killed_loses_no_run(tmp_path) -> None:
    path = tmp_path / RESULTS
    kept = []

    def look(result):
        if len(result.tried) == 2 and not kept:  # as a kill would leave it, in the middle of a line
            kept.append((path.read_bytes(), path.with_suffix(".jsonl").read_bytes() + b'{"nu'))

    search(Listed(CLEAN, BAD, CLEAN, CLEAN), Program(), path=path, on_change=look).run()
    assert not path.with_suffix(".jsonl").exists()
    summary, lines = kept[0]
    path.write_bytes(summary)
    path.with_suffix(".jsonl").write_bytes(lines)
    result = read_result(path)
    assert [tried.kind for tried in result.tried] == ["clean", "found"]
    assert (result.counts["clean"], result.counts["found"]) == (1, 1)
    assert not result.complete


def test_ctrl_c_keeps_what_was_found_and_stops_what_runs(tmp_path) -> None:
    path = tmp_path / RESULTS
    began, ended = threading.Event(), threading.Event()

    class Long(Program):
        def outcome(self, schedule, number):
            if schedule == CLEAN:
                began.set()
                while not self.stopped:
                    threading.Event().wait(0.01)
                ended.set()
                raise Stopped
            assert began.wait(60)  # one that has not begun by then never does
            return super().outcome(schedule, number)

    def interrupt(result):
        if result.reported:
            raise KeyboardInterrupt

    program = Long()
    result = search(
        Listed(BAD, CLEAN, CLEAN), program, jobs=2, path=path, on_change=interrupt
    ).run()
    assert ended.is_set()
    assert result.interrupted
    assert not result.complete
    assert read_result(path).reported[0].roots == ("CR301",)


def test_off_a_terminal_there_is_a_line_for_each_find_and_some_counts(capsys) -> None:
    with Bar("harness.run", 20) as bar:
        run = search(
            Listed(*[CLEAN] * 9, BAD, *[CLEAN] * 10),
            Program(),
            on_change=bar.show,
            on_find=bar.found,
        )
        run.run()
    lines = capsys.readouterr().err.splitlines()
    finds = [line for line in lines if "found CR301" in line]
    assert finds == [f"harness.run: found CR301, 2 of 2 replays: {BAD}"]
    assert any(line.startswith("harness.run: 20 of 20 · found 1 · clean 19") for line in lines)
    assert 5 <= len(lines) <= 12


def test_counts_say_every_kind() -> None:
    result = SearchResult(strategy="given", description="", bound=1)
    result.add(1, CLEAN, Outcome(kind="not reached", headline="A:step:enter was not reached"))
    assert "not reached 1" in result.said
