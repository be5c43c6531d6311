"""CR501 to CR504, hand-made: what threads do with CUDA graphs on a GPU."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import A, B, codes, find, roots, two_threads, warm

TREES = "/home/user/venv/torch/_inductor/cudagraph_trees.py"
REFUSED = "CUDA error: operation not permitted when stream is capturing"
GIVEN_UP = "CUDA error: operation failed due to a previous error during capture"


def capture(script, tid, edge, **data):
    described = {"graph": 1, "what": "capture", "mode": "global", **data}
    return script.add("cuda_graph", tid, described, edge, where=frames("capture"))


def replay(script, tid, before, *, again, **data):
    described = {
        "graph": 1,
        "what": "replay",
        "captured_tid": MAIN,
        "before_tid": before,
        "again": again,
        **data,
    }
    return script.add("cuda_graph", tid, described, where=frames("loop"))


class TestTreesOfAnotherThread:
    def failing(self, script, *own):
        where = [*frames("loop"), *own, [TREES, 359, "get_obj", False]]
        script.error(A, "thread", "AssertionError", "", where=where)

    def test_a_thread_without_their_state(self, script):
        warm(script)
        capture(script, MAIN, "enter", trees=True, mode="thread_local")
        capture(script, MAIN, "exit", trees=True)
        two_threads(script)
        self.failing(script)
        report = diagnose(script.finish())
        assert "CR501" in roots(report)
        assert "captured graphs in thread `MainThread`" in find(report, "CR501").statements[1].text

    def test_it_follows_from_what_made_the_thread_compile(self, script):
        warm(script, grad=False)
        two_threads(script)
        script.miss(A)
        script.compile(A, "0/1", reasons=["0/0: GLOBAL_STATE changed: grad_mode "])
        self.failing(script)
        assert find(diagnose(script.finish()), "CR501").follows_from == ("CR101",)

    def test_an_assertion_elsewhere_in_that_file_is_none(self, script):
        two_threads(script)
        where = [*frames("loop"), [TREES, 2100, "run", False]]
        script.error(A, "thread", "AssertionError", "", where=where)
        assert "CR501" not in codes(diagnose(script.finish()))


class TestAbort:
    STACK = (
        "Fatal Python error: Aborted\n\n"
        "Current thread 0x00007f00 [drafter-0] (most recent call first):\n"
        f'  File "{TREES}", line 1104 in run_graph\n'
        '  File "/home/user/project/train.py", line 7 in loop\n'
    )

    def died(self, script, number=6, **ended):
        name = {6: "SIGABRT", 11: "SIGSEGV"}[number]
        return diagnose(script.finish(None, end=False, signal=number, signal_name=name, **ended))

    def test_inside_cuda_graphs(self, script):
        warm(script)
        two_threads(script)
        report = self.died(script, fatal_stacks=self.STACK)
        assert codes(report) == {"CR502"}
        assert "`run_graph`" in find(report, "CR502").statements[2].text

    def test_over_an_error_of_c10_with_several_users(self, script):
        warm(script)
        two_threads(script)
        replay(script, A, MAIN, again=False, trees=True)
        thrown = "terminate called after throwing an instance of 'c10::Error'"
        report = self.died(script, stderr_tail=thrown)
        assert codes(report) == {"CR502"}
        assert "which 2 threads used" in report.headline

    def test_such_an_error_without_graphs_is_a_crash(self, script):
        warm(script)
        two_threads(script)
        thrown = "terminate called after throwing an instance of 'c10::Error'"
        assert codes(self.died(script, stderr_tail=thrown)) == {"CR902"}

    def test_a_crash_elsewhere_is_a_crash(self, script):
        warm(script)
        stack = self.STACK.replace(TREES, "/home/user/project/native.py")
        assert codes(self.died(script, 11, fatal_stacks=stack)) == {"CR902"}


class TestCaptureClash:
    def test_anothers_call_came_in(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter")
        script.error(B, "thread", "RuntimeError", REFUSED, number=1)
        capture(script, A, "exit", error=f"RuntimeError: {GIVEN_UP}")
        script.error(A, "thread", "RuntimeError", GIVEN_UP, number=2)
        report = diagnose(script.finish())
        assert "CR503" in roots(report)
        assert {e.explained_by[0] for e in report.errors} == {"CR503"}
        assert report.headline.startswith("A CUDA call of `drafter-1` came into the capture of a")

    def test_whose_call_it_was_may_be_unknown(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter")
        capture(script, A, "exit", error=f"RuntimeError: {GIVEN_UP}")
        script.error(A, "thread", "RuntimeError", GIVEN_UP)
        finding = find(diagnose(script.finish()), "CR503")
        assert finding.statements[-1].certainty == "unknown"

    def test_a_call_within_ones_own_capture_is_no_clash(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter")
        capture(script, A, "exit", error=f"RuntimeError: {GIVEN_UP}")
        refused = {"id": 7, "type": "RuntimeError", "message": REFUSED, "relation": "context"}
        script.error(A, "thread", "RuntimeError", GIVEN_UP, links=[refused])
        assert "CR503" not in codes(diagnose(script.finish()))

    @pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
    def test_other_modes_refuse_nobody_else(self, script, mode):
        warm(script)
        two_threads(script)
        capture(script, A, "enter", mode=mode)
        script.error(B, "thread", "RuntimeError", REFUSED)
        capture(script, A, "exit")
        assert "CR503" not in codes(diagnose(script.finish()))

    def test_what_waits_for_the_whole_device_breaks_a_capture_of_any_mode(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter", mode="thread_local")
        script.error(B, "thread", "torch.AcceleratorError", REFUSED, number=1)
        capture(script, A, "exit", error=f"AcceleratorError: {GIVEN_UP}\nSearch for `x' in")
        script.error(A, "thread", "torch.AcceleratorError", GIVEN_UP, number=2)
        report = diagnose(script.finish())
        assert roots(report) == {"CR503"}
        assert "CUDA refuses such a call in every `capture_error_mode`" in report.headline
        assert find(report, "CR503").statements[2].text.endswith(f"AcceleratorError: {GIVEN_UP}`.")

    def test_it_counts_that_a_thread_without_a_capture_was_told_of_one(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter")
        script.error(B, "thread", "RuntimeError", "cudaErrorStreamCaptureInvalidated")
        capture(script, A, "exit")
        assert "CR503" in codes(diagnose(script.finish()))

    def test_a_librarys_handle_made_within_ones_own_capture_is_no_clash(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter")
        capture(script, A, "exit", error=f"RuntimeError: {GIVEN_UP}")
        handle = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
        inner = {"id": 7, "type": "RuntimeError", "message": handle, "relation": "context"}
        script.error(A, "thread", "RuntimeError", GIVEN_UP, links=[inner])
        assert "CR503" not in codes(diagnose(script.finish()))

    def test_two_captures_at_once_of_which_one_fails_by_itself_are_no_clash(self, script):
        warm(script)
        two_threads(script)
        capture(script, A, "enter", mode="thread_local")
        capture(script, B, "enter", mode="thread_local", graph=2)
        capture(script, B, "exit", graph=2, error=f"RuntimeError: {GIVEN_UP}")
        script.error(B, "thread", "RuntimeError", GIVEN_UP)
        capture(script, A, "exit")
        assert "CR503" not in codes(diagnose(script.finish()))


class TestReplays:
    def in_turn(self, script, **data):
        warm(script)
        two_threads(script)
        replay(script, A, MAIN, again=False, **data)
        replay(script, B, A, again=False, **data)
        replay(script, A, B, again=True, **data)
        return diagnose(script.finish())

    @pytest.mark.parametrize(
        "data", [{"trees": True}, {"other_stream": True}, {"inside_tids": [MAIN]}]
    )
    def test_in_turn(self, script, data):
        report = self.in_turn(script, **data)
        assert roots(report) == {"CR504"}
        finding = find(report, "CR504")
        assert finding.statements[0].certainty == "observed"
        assert finding.statements[-1].certainty == "inferred"
        assert {"drafter-0", "drafter-1"} <= {thread.name for thread in finding.threads}

    def test_in_turn_on_one_stream_is_a_note(self, script):
        report = self.in_turn(script)
        assert (codes(report), [note.code for note in report.notes]) == (set(), ["CR504"])

    def test_one_after_another_is_no_turn(self, script):
        """Warmed by main, then used by one thread, then by another: none comes back."""
        warm(script)
        two_threads(script)
        replay(script, A, MAIN, again=False, trees=True)
        replay(script, B, A, again=False, trees=True)
        report = diagnose(script.finish())
        assert (codes(report), report.notes) == (set(), ())
