"""CR208 and CR303: who compiled what another one had compiled, or was compiling."""

from harness.diagnosis.build import diagnose

from .build import Script, code
from .rules import GRAD_MODE, A, B, codes, find, roots, two_threads, warm


class TestStampede:
    def test_a_follower_shares_its_leaders_cause(self, script):
        warm(script, grad=False)
        two_threads(script)
        script.miss(A)
        script.begin(A, "0/1")
        script.miss(B)
        script.wait(B, A, "enter")
        script.end(A, "0/1", reasons=[GRAD_MODE], digest="same")
        script.wait(B, A, "exit")
        unexpected = "0/1: Unexpected recompilation: runtime guards failed even though they passed"
        script.compile(B, "0/2", reasons=[unexpected], digest="other")
        report = diagnose(script.finish())
        assert roots(report) == {"CR101"}
        assert {t.tid for t in find(report, "CR101").threads} == {A, B}
        stampede = find(report, "CR303")
        assert stampede.follows_from == ("CR101",)
        assert "passed every guard" in stampede.statements[0].text

    def test_a_compile_that_began_after_the_other_had_ended_is_none(self, script):
        warm(script, grad=False)
        two_threads(script)
        script.miss(A)
        script.compile(A, "0/1", reasons=[GRAD_MODE], digest="same")
        script.miss(B)
        script.compile(B, "0/2", reasons=[GRAD_MODE], digest="same")
        assert codes(diagnose(script.finish())) == {"CR101"}

    def test_a_call_that_the_others_entry_rejects_repeats_nothing(self, script):
        """Two closures of one code object: same inputs and context, another captured value."""
        inputs = [("x", (4, 4), "cpu")]
        two_threads(script)
        script.begin(A, "0/0", inputs=inputs)
        script.wait(B, A, "enter")
        script.end(A, "0/0", digest="one")
        script.wait(B, A, "exit")
        script.compile(B, "0/1", inputs=inputs, digest="other", reasons=["0/0: scale == 2.5"])
        report = diagnose(script.finish())
        assert codes(report) == {"CR208"}
        assert "`scale == 2.5`" in find(report, "CR208").statements[-1].text


class TestColdStart:
    def recording(self, folder, *, probes=None, second="first"):
        script = Script(folder, probes=probes)
        two = code(2, "block")
        script.thread(A, "drafter-0")
        script.thread(B, "drafter-1")
        if second == "first":
            script.call(B, of=two)
        script.call(A, of=two)
        script.compile(A, "0/0", of=two)
        script.compile(B, "0/1", of=two)
        return diagnose(script.finish())

    def test_a_call_that_began_before_the_first_entry_was_there(self, tmp_path):
        assert roots(self.recording(tmp_path)) == {"CR208"}

    def test_what_is_missing_before_may_have_been_a_warm_up(self, tmp_path):
        script = Script(tmp_path)
        script.seq += 3
        two_threads(script)
        script.begin(A, "0/0")
        script.wait(B, A, "enter")
        script.end(A, "0/0")
        script.wait(B, A, "exit")
        script.compile(B, "0/1")
        report = diagnose(script.finish())
        cold = find(report, "CR208")
        assert [s.certainty for s in cold.statements[:2]] == ["inferred", "unknown"]
        assert "without a warm-up" not in report.headline
        assert "a warm-up may be among them" in report.headline

    def test_what_is_missing_after_it_changes_nothing(self, tmp_path):
        script = Script(tmp_path)
        two_threads(script)
        script.begin(A, "0/0")
        script.wait(B, A, "enter")
        script.end(A, "0/0")
        script.wait(B, A, "exit")
        script.compile(B, "0/1")
        script.seq += 3
        report = diagnose(script.finish())
        assert find(report, "CR208").statements[0].certainty == "observed"
        assert "without a warm-up" in report.headline

    def test_where_beginnings_go_unseen_a_compile_without_a_miss_tells(self, tmp_path):
        gone = {"wrapper": "missing", "lock": "missing"}
        report = self.recording(tmp_path, probes=gone, second="unseen")
        assert roots(report) == {"CR208"}

    def test_a_compile_after_a_reset_is_no_cold_start(self, tmp_path):
        assert codes(self.recording(tmp_path, second="unseen")) == set()
