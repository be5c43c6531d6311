"""Autograd's device thread works for others: whose its compiles are."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN
from .rules import DUMMY, GRAD_MODE, SIZE, A, B, roots, two_threads, warm


class TestAutograd:
    """On CUDA the backward runs on a thread of autograd's, for whoever called it."""

    def backward(self, script, number, behalf):
        where = [["/home/user/venv/torch/_functorch/x.py", 3, "backward", False]]
        data = {"behalf_tids": behalf}
        script.add("backward_compile", DUMMY, data, "enter", compile_id=number, where=where)
        script.add("backward_compile", DUMMY, {**data, "ok": True}, "exit", compile_id=number)

    def test_on_behalf_of_one_other_thread(self, script):
        script.call(MAIN)
        script.compile(MAIN, "0/0")
        script.thread(A, "trainer")
        script.call(A)
        script.backward(A)
        self.backward(script, "0/0", [A])
        report = diagnose(script.finish())
        assert roots(report) == {"CR207"}
        (finding,) = report.findings
        assert [t.tid for t in finding.threads] == [A]
        assert finding.statements[0].certainty == "observed"

    def test_on_behalf_of_one_of_two_is_inferred(self, script):
        script.compile(MAIN, "0/0")
        two_threads(script)
        self.backward(script, "0/0", [A, B])
        report = diagnose(script.finish())
        (finding,) = report.findings
        assert finding.code == "CR207"
        assert finding.statements[0].certainty == "inferred"
        assert "compiled on behalf of `drafter-0` or `drafter-1`" in report.headline

    @pytest.mark.parametrize("behalf", [[MAIN], [MAIN, A]])
    def test_where_the_forwards_own_thread_may_have_called_it_is_none(self, script, behalf):
        script.compile(MAIN, "0/0")
        script.thread(A, "trainer")
        script.call(A)
        self.backward(script, "0/0", behalf)
        assert diagnose(script.finish()).verdict == "clean"

    def test_recomputation_in_the_warm_up_is_the_callers(self, script):
        """A checkpointed warm-up calls the code on autograd's thread; that is no second caller."""
        where = [["/home/user/venv/torch/utils/checkpoint.py", 9, "recompute", False]]
        warm(script)
        script.call(DUMMY, where=where)
        script.miss(MAIN)
        script.compile(MAIN, "0/1", reasons=[SIZE])
        script.call(DUMMY, where=where)
        two_threads(script)
        report = diagnose(script.finish())
        assert report.verdict == "clean"
        assert report.counts.compiles_after_warmup == 0
        assert report.counts.threads_with_compiled_calls == 3
        assert [t.role for t in report.threads] == ["main", "workload", "workload", "autograd"]

    def test_it_is_listed_and_not_counted_with_the_threads_that_it_serves(self, script):
        where = [["/home/user/venv/torch/utils/checkpoint.py", 9, "recompute", False]]
        warm(script, grad=False)
        two_threads(script)
        for number, tid in enumerate((A, B), 1):
            script.miss(tid)
            script.compile(tid, f"0/{number}", reasons=[GRAD_MODE])
            script.backward(tid)
        script.call(DUMMY, where=where)
        report = diagnose(script.finish())
        assert report.headline.startswith("Both drafter threads recompiled")
        assert report.counts.threads_with_compiled_calls == 3
        (own,) = (of for of in report.coverage[0].threads if of.thread.tid == DUMMY)
        assert own.state == "autograd"
        assert [t.tid for t in own.behalf] == [MAIN, A, B]
        (thread,) = (t for t in report.threads if t.thread.tid == DUMMY)
        assert thread.behalf == own.behalf

    def test_a_compile_of_its_own_is_the_finding_only_where_no_other_thread_has_one(self, script):
        where = [["/home/user/venv/torch/utils/checkpoint.py", 9, "recompute", False]]
        warm(script, grad=False)
        two_threads(script)
        script.backward(A)
        script.backward(B)
        script.miss(DUMMY, where=where)
        script.compile(DUMMY, "0/1", reasons=[GRAD_MODE], where=where)
        report = diagnose(script.finish())
        assert report.headline.startswith(f"Autograd's thread `autograd-{DUMMY}` recompiled")
