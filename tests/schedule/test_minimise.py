"""Minimising, against a simulated program with a known bug."""

import json
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from dflash_min.config import TrainConfig
from harness.schedule.minimise import Case, minimise, write_minimised
from harness.schedule.outcome import Outcome
from harness.schedule.plan import Plan, constraining, lettered, parse_plan
from harness.schedule.reductions import Knob, trainer_reductions

from .program import BUG, Program, is_in
from .test_plan import plans

WANTED = Outcome(kind="found", verdict="found", roots=("CR301",))
LONG = parse_plan(
    [
        "C:step:enter",
        "A:fx_trace:enter",
        "B:wrapper:enter",
        "C:block_mask:enter",
        "A:fx_trace:exit",
        "B:step:exit",
    ]
)


@dataclass(frozen=True)
class Size:
    """A plain program's knobs."""

    threads: int = 4
    steps: int = 9


REDUCTIONS = (
    Knob("threads", lambda size: (replace(size, threads=n) for n in range(1, size.threads))),
    Knob("steps", lambda size: (replace(size, steps=n) for n in range(1, size.steps))),
)


def judged(shows):
    """A runner for each spec, which shows what ``shows(plan, spec)`` says."""
    counted = []

    def runner_for(spec):
        class Judge(Program):
            def outcome(self, schedule, number):
                counted.append(schedule)
                return shows(schedule, spec)

        return Judge()

    return runner_for, counted


def shows_bug(bug=BUG, least=None):
    def shows(plan, spec):
        bad = is_in(bug, plan.texts)
        if bad and least is not None and (spec.threads < least.threads or spec.steps < least.steps):
            bad = False
        return WANTED if bad else Outcome(kind="clean", verdict="clean")

    return shows


def test_holds_that_do_not_matter_are_dropped_and_the_original_is_kept() -> None:
    runner_for, _ = judged(shows_bug())
    result = minimise(Case(LONG, None), WANTED, runner_for)
    assert result.state == "minimal"
    assert result.smallest.plan.texts == BUG
    assert result.original.plan == LONG
    assert (result.roots, result.verdict) == (frozenset({"CR301"}), "found")


def test_knobs_are_turned_down_as_far_as_it_still_shows() -> None:
    runner_for, _ = judged(shows_bug(least=Size(2, 3)))
    result = minimise(Case(LONG, Size()), WANTED, runner_for, REDUCTIONS)
    assert result.smallest == Case(parse_plan(BUG), Size(2, 3))


def test_another_root_or_verdict_is_not_the_same() -> None:
    def shows(plan, spec):
        if is_in(BUG, plan.texts) and len(plan.holds) < 6:
            return Outcome(kind="found", verdict="found", roots=("CR301", "CR101"))
        return WANTED

    runner_for, _ = judged(shows)
    result = minimise(Case(LONG, None), WANTED, runner_for)
    # What is left shows CR301 alone; the bug's own three holds would show more.
    assert not is_in(BUG, result.smallest.plan.texts)
    assert shows(result.smallest.plan, None) == WANTED


def test_what_shows_without_holds_keeps_two_and_is_told() -> None:
    runner_for, runs = judged(lambda plan, spec: WANTED)
    result = minimise(Case(LONG, None), WANTED, runner_for)
    assert len(result.smallest.plan.holds) == 2
    assert len(result.smallest.plan.threads) == 2
    assert runs.count(Plan()) == result.free == 6
    assert result.attempts[-1].what == "no holds"


def test_what_needs_its_holds_is_not_said_to_show_without_them() -> None:
    runner_for, runs = judged(shows_bug())
    result = minimise(Case(LONG, None), WANTED, runner_for)
    assert result.free == 0
    assert runs.count(Plan()) == 1


def test_what_does_not_show_again_is_not_touched() -> None:
    runner_for, runs = judged(lambda plan, spec: Outcome(kind="clean", verdict="clean"))
    result = minimise(Case(LONG, None), WANTED, runner_for)
    assert result.state == "not reproduced"
    assert result.smallest == result.original
    assert runs == [LONG]


def test_it_stops_at_its_bound_with_the_best_so_far() -> None:
    runner_for, runs = judged(shows_bug())
    result = minimise(Case(LONG, None), WANTED, runner_for, max_runs=9)
    assert result.state == "out of runs"
    assert result.runs == len(runs) == 9
    assert is_in(BUG, result.smallest.plan.texts)


def test_a_variant_that_shows_only_sometimes_is_not_taken() -> None:
    turns = {}

    def shows(plan, spec):
        turns[plan] = turns.get(plan, 0) + 1
        flaky = len(plan.holds) < 4 and turns[plan] % 2 == 0
        return WANTED if is_in(BUG, plan.texts) and not flaky else Outcome(kind="clean")

    runner_for, _ = judged(shows)
    result = minimise(Case(LONG, None), WANTED, runner_for)
    assert len(result.smallest.plan.holds) == 4


def test_names_of_threads_become_letters_where_any_thread_will_do() -> None:
    plan = parse_plan([text.replace("A:", "t2:").replace("B:", "t5:") for text in BUG])

    def shows(plan, spec):
        return WANTED if is_in(BUG, lettered(plan).texts) else Outcome(kind="clean")

    runner_for, _ = judged(shows)
    assert minimise(Case(plan, None), WANTED, runner_for).smallest.plan.texts == BUG


@given(plans, st.data(), st.integers(1, 4), st.integers(1, 9))
def test_minimising_never_changes_the_root_cause_and_ends_minimal(plan, data, threads, steps):
    size = data.draw(st.integers(2, len(plan.holds)))
    at = sorted(data.draw(st.permutations(range(len(plan.holds))))[:size])
    # A numbered thread becomes a letter: the bug is in terms of letters.
    bug = tuple(lettered(plan).texts[n] for n in at)
    shows = shows_bug(bug, Size(threads, steps))

    def either(plan, spec):
        return shows(lettered(plan), spec)

    runner_for, _ = judged(either)
    result = minimise(Case(plan, Size()), WANTED, runner_for, REDUCTIONS, max_runs=2000)
    assert result.state == "minimal"
    smallest = result.smallest
    assert either(smallest.plan, smallest.spec) == WANTED
    for number in range(len(smallest.plan.holds)):
        rest = smallest.plan.holds[:number] + smallest.plan.holds[number + 1 :]
        fewer = constraining(rest, smallest.plan)
        assert either(fewer, smallest.spec) != WANTED
    assert smallest.spec == Size(threads, steps)


def test_the_original_and_all_attempts_are_written(tmp_path) -> None:
    runner_for, _ = judged(shows_bug())
    result = minimise(Case(LONG, TrainConfig()), WANTED, runner_for)
    write_minimised(tmp_path / "minimised.json", result)
    read = json.loads((tmp_path / "minimised.json").read_text())
    assert len(read["original"]["plan"]["holds"]) == 6
    assert len(read["smallest"]["plan"]["holds"]) == 3
    assert read["roots"] == ["CR301"]
    assert read["attempts"][0]["what"] == "again"
    assert len(read["attempts"]) == len(result.attempts)


def test_the_trainers_knobs_come_in_order_and_only_ever_get_smaller() -> None:
    config = TrainConfig(threads=4, steps=12, layers=2, backend="inductor")
    knobs = trainer_reductions((192, 224, 256), "inductor")
    assert [knob.name for knob in knobs] == [
        "threads",
        "steps",
        "layers",
        "sequence lengths",
        "activation checkpointing",
        "backend",
    ]
    smaller = {knob.name: list(knob.smaller(config)) for knob in knobs}
    assert [c.threads for c in smaller["threads"]] == [1, 2, 3]
    assert [c.steps for c in smaller["steps"]] == [1, 2, 4, 8, 11]
    assert [c.layers for c in smaller["layers"]] == [1]
    assert [c.seq_lens for c in smaller["sequence lengths"]] == [(192,), (192, 224)]
    assert [c.activation_checkpointing for c in smaller["activation checkpointing"]] == [False]
    assert [c.backend for c in smaller["backend"]] == ["eager", "aot_eager"]
    named = replace(config, drafters=("cuda:0",), activation_checkpointing=False, backend="eager")
    assert not any(list(knobs[n].smaller(named)) for n in (0, 4, 5))
    assert list(knobs[5].smaller(replace(config, compile_mode="max-autotune"))) == []


def test_a_config_with_nothing_set_has_the_devices_defaults() -> None:
    knobs = {knob.name: knob for knob in trainer_reductions((64, 96), "aot_eager")}
    config = TrainConfig()
    assert [c.threads for c in knobs["threads"].smaller(config)] == [1, 2]
    assert [c.seq_lens for c in knobs["sequence lengths"].smaller(config)] == [(64,)]
    assert [c.backend for c in knobs["backend"].smaller(config)] == ["eager"]
