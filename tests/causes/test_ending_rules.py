"""CR902, CR903 and CR906: how the process ended, and what made it."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN
from .rules import A, B, codes, find, roots, warm


class TestEndings:
    def test_a_shell_in_between_tells_of_a_signal(self, script):
        script.compile(MAIN, "0/0")
        report = diagnose(script.finish(139, end=False))
        assert codes(report) == {"CR902"}
        assert report.findings[0].statements[0].certainty == "inferred"

    def test_a_crash_in_a_compile_follows_from_what_made_it_compile(self, script):
        warm(script, grad=False)
        script.thread(A, "drafter")
        script.miss(A)
        script.begin(A, "0/1")
        report = diagnose(script.finish(None, end=False, signal=6, signal_name="SIGABRT"))
        assert roots(report) == {"CR101"}
        assert find(report, "CR902").follows_from == ("CR101",)

    @pytest.mark.parametrize("number", [15, 9, 1])
    def test_killed_from_outside_is_no_crash(self, script, number):
        script.compile(MAIN, "0/0")
        folder = script.finish(None, end=False, signal=number, killed_from_outside=True)
        assert codes(diagnose(folder)) == {"CR906"}

    @pytest.mark.parametrize(("own", "code"), [(True, "CR905"), (False, "CR906")])
    def test_a_program_that_raises_keyboardinterrupt_is_killed_by_nobody(self, script, own, code):
        script.compile(MAIN, "0/0")
        if own:
            script.error(MAIN, "main", "KeyboardInterrupt", "")
        end = {"signal": 2, "signal_name": "SIGINT", "killed_from_outside": True}
        report = diagnose(script.finish(None, **end))
        assert codes(report) == {code}
        assert report.ended.killed_from_outside != own
        assert any("from outside" in gap.reason for gap in report.not_watched) != own

    def test_a_hang_names_who_waits_for_whom(self, script):
        script.thread(A, "compiler")
        script.thread(B, "holder")
        script.begin(A, "0/0")
        script.wait(B, A, "enter")
        folder = script.finish(None, end=False, signal=9, deadline_hit=True, idle_at_deadline=True)
        report = diagnose(folder)
        assert codes(report) == {"CR903"}
        assert "`holder` waited for dynamo's compile lock, held by `compiler`" in report.headline

    def test_busy_at_the_deadline_is_incomplete(self, script):
        script.compile(MAIN, "0/0")
        folder = script.finish(None, end=False, signal=9, deadline_hit=True, idle_at_deadline=False)
        assert diagnose(folder).verdict == "incomplete"
