"""What a replay is held to, and what a schedule that was not done does to the verdict."""

import msgspec
import pytest

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.schedule.outcome import outcome_of
from harness.schedule.plan import Delays, Plan, parse_plan
from harness.schedule.replay import decide_replay, first_difference
from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script, context

HOLDS = ("A:fx_trace:enter", "B:wrapper:enter", "A:fx_trace:exit")
PLAN = parse_plan(HOLDS)
ONE, TWO = MAIN + 1, MAIN + 2


class Scheduled(Script):
    """A program with two threads, both covered by the warm-up, under a schedule."""

    def __init__(self, folder):
        super().__init__(folder)
        self.schedule("begun", 0)
        self.call(MAIN)
        self.compile(MAIN, "0/0")
        self.thread(ONE, "drafter-0")
        self.thread(TWO, "drafter-1")
        for tid in (ONE, TWO):
            self.call(tid, ctx=context())

    def schedule(self, state, reached, reason="", **data):
        held = {"state": state, "reached": reached, "reason": reason, "holds": list(HOLDS), **data}
        if reached < len(HOLDS):
            held["next"] = HOLDS[reached]
        self.add("schedule", MAIN, held)

    def passes(self, *tids, holds=HOLDS):
        for number, (tid, hold) in enumerate(zip(tids, holds, strict=False)):
            self.add("hold", tid, {"number": number, "hold": hold, "waited_s": 0.1})


@pytest.fixture
def script(tmp_path):
    return Scheduled(tmp_path / "run")


def read(script, **ended):
    recording = Recording(script.finish(**ended))
    return diagnose(recording), recording.timelines()[0]


def test_a_run_that_followed_its_schedule_is_decided_by_its_verdict(script) -> None:
    script.passes(ONE, TWO, ONE)
    script.schedule("done", 3, threads={"A": ONE, "B": TWO})
    report, timeline = read(script)
    assert report.verdict == "clean"
    assert first_difference(PLAN, timeline) is None
    assert decide_replay(report, None) == ExitCode.CLEAN
    found = msgspec.structs.replace(report, exit_code=1)
    assert decide_replay(found, None) == ExitCode.FOUND
    assert decide_replay(report, None, expect=("clean",)) == ExitCode.CLEAN
    assert decide_replay(report, None, expect=("CR301",)) == ExitCode.FOUND
    assert outcome_of(report, timeline.schedule).kind == "clean"
    never = first_difference(PLAN, None)
    outcome = outcome_of(report, None, never.said)
    assert (outcome.kind, outcome.followed) == ("not reached", False)
    assert "was never set up" in outcome.headline


@pytest.mark.parametrize("state", ["not reached", "impossible"])
def test_a_hold_that_was_not_passed_leaves_the_verdict_open(script, state) -> None:
    script.passes(ONE, TWO)
    script.schedule(state, 2, "nothing moved for 9.0 s", threads={"A": ONE, "B": TWO})
    report, timeline = read(script)
    assert report.verdict == "incomplete"
    (gap,) = report.not_watched
    assert (gap.name, gap.state) == ("schedule", state)
    assert gap.reason == (f"hold 3 of 3, A:fx_trace:exit, {state}: nothing moved for 9.0 s")
    difference = first_difference(PLAN, timeline)
    assert (difference.number, difference.expected, difference.thread) == (
        3,
        "A:fx_trace:exit",
        "drafter-0",
    )
    assert difference.said.startswith("did not reproduce: hold 3, A:fx_trace:exit, in thread")
    assert "nothing moved" in difference.said
    assert decide_replay(report, difference) == ExitCode.INCOMPLETE
    assert outcome_of(report, timeline.schedule).kind == state


def test_a_finding_does_not_make_up_for_a_hold_that_was_not_passed(script) -> None:
    script.passes(ONE)
    script.schedule("not reached", 1, "the program ended")
    report, timeline = read(script)
    found = msgspec.structs.replace(report, verdict="found", exit_code=1)
    assert decide_replay(found, first_difference(PLAN, timeline)) == ExitCode.INCOMPLETE
    assert outcome_of(found, timeline.schedule).kind == "found"


@pytest.mark.parametrize("code", [ExitCode.FAILED, ExitCode.INTERRUPTED])
def test_what_outranks_stays(code) -> None:
    report = Report(verdict="failed", exit_code=int(code), headline="")
    difference = first_difference(PLAN, None)
    assert "never set up" in difference.said
    assert decide_replay(report, difference) == code


def test_another_hold_in_its_place_is_the_first_difference(script) -> None:
    script.passes(ONE, TWO, holds=("A:fx_trace:enter", "B:block_mask:enter"))
    script.schedule("done", 3)
    difference = first_difference(PLAN, read(script)[1])
    assert (difference.number, difference.got) == (2, "B:block_mask:enter")
    assert difference.thread == "drafter-1"
    assert difference.evidence > 0


@pytest.mark.parametrize(
    ("tids", "number", "reason"),
    [
        ((ONE, TWO, TWO), 3, "by another thread than A's holds before"),
        ((ONE, ONE, ONE), 2, "by the thread that is A already"),
    ],
)
def test_another_thread_in_a_part_is_a_difference(script, tids, number, reason) -> None:
    script.passes(*tids)
    script.schedule("done", 3)
    difference = first_difference(PLAN, read(script)[1])
    assert difference.number == number
    assert reason in difference.reason


def test_the_main_thread_is_told_from_the_others(script) -> None:
    plan = parse_plan(["main:fx_trace:enter", "t1:wrapper:enter"])
    script.passes(ONE, TWO, holds=plan.texts)
    script.schedule("done", 3)
    assert "not passed by the main thread" in first_difference(plan, read(script)[1]).reason


def test_one_pass_too_many_is_a_difference(script) -> None:
    script.passes(ONE, TWO, ONE)
    script.schedule("done", 3)
    shorter = parse_plan(HOLDS[:2])
    assert "beyond the end" in first_difference(shorter, read(script)[1]).reason


def test_a_process_that_died_in_the_middle_did_not_reach_the_rest(script) -> None:
    script.passes(ONE, TWO)
    report, timeline = read(script, end=False, exit_code=None, signal=9, signal_name="SIGKILL")
    reasons = [gap.reason for gap in report.not_watched if gap.name == "schedule"]
    assert reasons == ["hold 3 of 3, A:fx_trace:exit, not reached: the process ended first"]
    assert "the process ended first" in first_difference(PLAN, timeline).reason


def test_a_process_that_died_after_the_last_hold_reached_them_all(script) -> None:
    script.passes(ONE, TWO, ONE)
    report, timeline = read(script, end=False, exit_code=None, signal=9, signal_name="SIGKILL")
    assert not [gap for gap in report.not_watched if gap.name == "schedule"]
    assert first_difference(PLAN, timeline) is None


def test_delays_have_no_steps_but_have_to_be_there(script, tmp_path) -> None:
    script.schedule("done", 0, strategy="chaos")
    assert first_difference(Delays(3), read(script)[1]) is None
    plain = Script(tmp_path / "plain")
    plain.call(MAIN)
    timeline = Recording(plain.finish()).timelines()[0]
    assert first_difference(Delays(3), timeline) is not None
    assert first_difference(Plan(), timeline) is None
