"""CR311: which tunings and which errors are a cold autotune race, and which are not."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import A, B, codes, find, roots, two_threads, warm

TUNER = "/home/user/venv/lib/python3.12/site-packages/triton/runtime/autotuner.py"
GONE = "'NoneType' object is not a mapping"
IN_HOOK = "'NoneType' object has no attribute 'shape'"


def tune(script, tid, edge, kernel=1, **data):
    described = {"kernel": kernel, "name": f"kernel_{kernel}", **data}
    script.add("autotune", tid, described, edge, where=frames("loop") if edge == "enter" else None)


def dies(script, tid, message=GONE, *, hook=False, kind="TypeError"):
    where = [*frames("loop"), [TUNER, 245, "run", False], [TUNER, 163, "_bench", False]]
    where += frames("early_prune") if hook else []
    script.error(tid, "thread", kind, message, where=where)


@pytest.fixture
def warmed(script):
    warm(script)
    two_threads(script)
    return script


class TestAnError:
    @pytest.mark.parametrize("arguments", ["gone", "others"])
    def test_with_its_arguments_taken_is_found(self, warmed, arguments):
        tune(warmed, A, "enter")
        error = f"TypeError: {GONE}"
        tune(warmed, A, "exit", met_tids=[B], error=error, arguments=arguments)
        dies(warmed, A)
        report = diagnose(warmed.finish())
        assert roots(report) == {"CR311"}
        assert codes(report) == {"CR311", "CR901"}
        finding = find(report, "CR311")
        assert {s.certainty for s in finding.statements} == {"observed"}
        assert [thread.tid for thread in finding.threads] == [A, B]
        assert "because thread `drafter-1` called it meanwhile" in report.headline

    def test_of_a_hook_that_was_given_none_is_found(self, warmed):
        tune(warmed, A, "enter")
        error = f"AttributeError: {IN_HOOK}"
        tune(warmed, A, "exit", met_tids=[B], error=error, arguments="gone")
        dies(warmed, A, IN_HOOK, hook=True, kind="AttributeError")
        assert roots(diagnose(warmed.finish())) == {"CR311"}

    def test_of_the_programs_own_hook_is_the_programs(self, warmed):
        tune(warmed, A, "enter")
        error = f"AttributeError: {IN_HOOK}"
        tune(warmed, A, "exit", error=error, arguments="own")
        dies(warmed, A, IN_HOOK, hook=True, kind="AttributeError")
        assert "CR311" not in codes(diagnose(warmed.finish()))

    def test_in_a_hook_with_no_tuning_recorded_proves_nothing(self, warmed):
        dies(warmed, A, IN_HOOK, hook=True, kind="AttributeError")
        assert "CR311" not in codes(diagnose(warmed.finish()))

    def test_raised_by_the_autotuner_itself_is_inferred_where_nothing_was_recorded(self, warmed):
        dies(warmed, A)
        report = diagnose(warmed.finish())
        assert roots(report) == {"CR311"}
        assert find(report, "CR311").statements[0].certainty == "inferred"

    def test_with_nobody_else_there_is_no_race(self, script):
        warm(script)
        where = [*frames("main"), [TUNER, 163, "_bench", False]]
        script.error(MAIN, "main", "TypeError", GONE, where=where)
        assert "CR311" not in codes(diagnose(script.finish(exit_code=1)))


class TestTwoTunings:
    def test_of_one_kernel_at_once_are_found_where_nothing_failed(self, warmed):
        tune(warmed, A, "enter")
        tune(warmed, B, "enter", met_tids=[A])
        tune(warmed, A, "exit", met_tids=[B])
        tune(warmed, B, "exit", met_tids=[A])
        report = diagnose(warmed.finish())
        assert codes(report) == {"CR311"}
        assert "Both drafter threads tuned `kernel_1` at the same time" in report.headline

    def test_one_after_the_other_are_none(self, warmed):
        for tid in (A, B):
            tune(warmed, tid, "enter")
            tune(warmed, tid, "exit")
        assert diagnose(warmed.finish()).verdict == "clean"

    def test_of_two_kernels_are_none(self, warmed):
        for edge in ("enter", "exit"):
            for kernel, tid in enumerate((A, B)):
                tune(warmed, tid, edge, kernel)
        assert diagnose(warmed.finish()).verdict == "clean"

    def test_a_call_that_found_its_config_while_its_thread_tuned_another_kernel(self, warmed):
        tune(warmed, A, "enter", 1)
        tune(warmed, B, "enter", 2)  # from a hook of kernel 1's call, say
        tune(warmed, A, "exit", 1, met_tids=[B])
        tune(warmed, B, "exit", 2)
        assert diagnose(warmed.finish()).verdict == "clean"

    def test_a_call_that_found_its_config_meanwhile_did_no_harm(self, warmed):
        tune(warmed, A, "enter")
        tune(warmed, A, "exit", met_tids=[B])
        assert diagnose(warmed.finish()).verdict == "clean"
