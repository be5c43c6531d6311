"""CR312, CR318 and CR403 to CR405 on hand-made recordings: what makes each, and what does not."""

import pytest

from harness.diagnosis.build import diagnose
from harness.timeline.folding import Bounds
from harness.timeline.recording import Recording

from .build import MAIN, Script, code, frames

A, B, AUTOGRAD = 4001, 4002, 4003
STEP = code(1, "step")
HOP = code(9, "_flex_attention_hop_wrapper", internal=True)


@pytest.fixture
def script(tmp_path):
    script = Script(tmp_path)
    script.compile(MAIN, "0/0", STEP)
    return script


def eager(script, tid, route, by=None, detail="", count=1, where=None, of=STEP):
    data = {"code": of, "route": route, "detail": detail, "by_tid": by, "count": count}
    data["began_ns"] = script.t + 1
    return script.add("eager", tid, data, where=where or frames("loop"))


def stance(script, tid, name="force_eager", *, skip=False):
    data = {"stance": name, "skip_guards": skip}
    return script.add("stance", tid, data, where=frames("evaluate"))


def limit_hit(script, tid, number="0/8"):
    script.begin(tid, number, STEP)
    return script.end(tid, number, STEP, ok=False, error="Unsupported", limit_hit=True)


def codes(report):
    return {finding.code: finding.follows_from for finding in report.findings}


def notes(report):
    return {note.code for note in report.notes}


class TestStance:
    def test_anothers_stance_is_a_finding(self, script):
        script.thread(A, "train")
        script.thread(B, "evaluate")
        script.call(A, STEP)
        seq = stance(script, B)
        eager(script, A, "stance", by=B, detail="force_eager")
        (finding,) = diagnose(script.finish()).findings
        assert finding.code == "CR312"
        assert seq in finding.evidence

    def test_the_stance_is_found_however_often_it_is_set(self, script):
        """A stance set in a loop: the one that a call ran under is not among the first or last."""
        script.thread(B, "evaluate")
        for _ in range(40):
            stance(script, B)
        script.thread(A, "train")
        seq = stance(script, B)
        eager(script, A, "stance", by=B, detail="force_eager")
        for _ in range(200):
            stance(script, B)
        folder = script.finish()
        tight = Bounds(records=24, ends=2, recent=2, every=1)
        recording = Recording(folder, tight)
        assert len(recording.timelines()[0].stances) < 100
        (finding,) = diagnose(Recording(folder, tight)).findings
        assert finding.code == "CR312"
        assert finding.statements[0].evidence[0] == seq

    def test_ones_own_is_a_note(self, script):
        script.thread(A, "train")
        stance(script, A)
        eager(script, A, "stance", by=A, detail="force_eager")
        report = diagnose(script.finish())
        assert (codes(report), notes(report)) == ({}, {"CR312"})

    def test_one_set_before_the_thread_was_started_is_meant(self, script):
        stance(script, MAIN)
        script.thread(A, "train")
        eager(script, A, "stance", by=MAIN, detail="force_eager")
        report = diagnose(script.finish())
        assert (codes(report), notes(report)) == ({}, {"CR312"})

    def test_autograds_thread_works_under_its_callers(self, script):
        where = [["/usr/lib/python3.11/contextlib.py", 81, "inner", False]]
        script.add("wrapper", AUTOGRAD, {"code": STEP, "first": True}, where=where)
        script.backward(MAIN)
        stance(script, MAIN)
        eager(script, AUTOGRAD, "stance", by=MAIN, detail="force_eager", where=where)
        assert codes(diagnose(script.finish())) == {}

    def test_skipped_guards_need_no_eager_call(self, script):
        script.thread(A, "train")
        script.thread(B, "serve")
        stance(script, B, "default", skip=True)
        data = {"code": STEP, "stance": "skip_guard_eval_unsafe", "stance_tid": B}
        script.add("wrapper", A, data, where=frames("loop"))
        report = diagnose(script.finish())
        assert list(codes(report)) == ["CR312"]
        assert "guards skipped" in report.headline

    def test_calls_that_hit_under_eager_on_recompile_are_not_changed(self, script):
        script.thread(A, "train")
        script.thread(B, "serve")
        stance(script, B, "eager_on_recompile")
        data = {"code": STEP, "stance": "eager_on_recompile", "stance_tid": B}
        script.add("wrapper", A, data, where=frames("loop"))
        assert codes(diagnose(script.finish())) == {}

    def test_an_error_of_torchs_that_names_it_is_accounted_for(self, script):
        script.thread(A, "train")
        stance(script, MAIN, "fail_on_recompile")
        message = "Detected recompile when torch.compile stance is 'fail_on_recompile'. x"
        script.error(A, "thread", "RuntimeError", message)
        assert "CR905" not in codes(diagnose(script.finish()))

    def test_the_same_error_under_ones_own_stance_is_the_programs(self, script):
        script.thread(A, "train")
        stance(script, A, "fail_on_recompile")
        message = "Detected recompile when torch.compile stance is 'fail_on_recompile'. x"
        script.error(A, "thread", "RuntimeError", message)
        assert "CR312" not in codes(diagnose(script.finish()))

    def test_dense_attention_under_it_follows_from_it(self, script):
        script.thread(A, "train")
        script.thread(B, "evaluate")
        stance(script, B)
        eager(script, A, "stance", by=B, detail="force_eager")
        dense = {"kind": "fallback", "shape": [1, 1, 8, 8], "dtype": "torch.float32"}
        script.add("dense_attention", A, dense, where=frames("loop"))
        assert codes(diagnose(script.finish())) == {"CR312": (), "CR401": ("CR312",)}


class TestMode:
    def test_anothers_mode_is_a_finding(self, script):
        script.thread(A, "train")
        script.thread(B, "count")
        eager(script, B, "dispatch_mode", by=B, detail="Counter")
        eager(script, A, "skipped_for_mode", by=B, detail="Counter")
        assert codes(diagnose(script.finish())) == {"CR318": ()}

    def test_ones_own_is_a_note_also_afterwards(self, script):
        script.thread(B, "count")
        eager(script, B, "dispatch_mode", by=B, detail="Counter")
        eager(script, B, "skipped_for_mode", by=B, detail="Counter")
        report = diagnose(script.finish())
        assert (codes(report), notes(report)) == ({}, {"CR318"})

    def test_what_it_may_account_for_is_a_note(self, script):
        script.thread(A, "train")
        script.thread(B, "count")
        eager(script, B, "dispatch_mode", by=B, detail="Counter", of=code(2, "outer"))
        eager(script, A, "unknown")
        report = diagnose(script.finish())
        assert codes(report) == {}
        assert [n.code for n in report.notes] == ["CR318", "CR318"]


class TestLimit:
    def test_another_threads_eager_calls_are_a_finding(self, script):
        script.thread(A, "long")
        script.thread(B, "short")
        limit_hit(script, A)
        eager(script, B, "run_only", by=A)
        report = diagnose(script.finish())
        assert "CR403" in codes(report)
        assert "calls of thread `short` run eager" in report.headline

    def test_entries_of_other_threads_that_used_it_up_are_one(self, script):
        script.thread(A, "long")
        script.thread(B, "short")
        script.call(A, STEP)
        script.compile(B, "0/1", STEP, reasons=["0/0: tensor 'x' size mismatch at index 0"])
        limit_hit(script, A)
        report = diagnose(script.finish())
        assert "part of which thread `short` had used up" in report.headline

    def test_a_thread_that_uses_it_up_alone_is_a_note(self, script):
        script.thread(A, "long")
        limit_hit(script, A)
        eager(script, A, "run_only", by=A)
        report = diagnose(script.finish())
        assert (codes(report), notes(report)) == ({}, {"CR403"})

    def test_an_error_that_main_raises_again_is_no_other_threads(self, script):
        script.thread(A, "long")
        limit_hit(script, A)
        kind, said = "torch._dynamo.exc.FailOnRecompileLimitHit", "recompile_limit reached"
        script.error(A, "future", kind, said, 7, future=1)
        script.add("future_read", MAIN, {"future": 1})
        script.error(MAIN, "main", kind, said, 7)
        report = diagnose(script.finish(1))
        assert "CR403" not in codes(report)
        assert "CR403" in notes(report)

    def test_an_error_over_the_limit_of_another_function_is_not_this_ones(self, script):
        script.thread(A, "long")
        script.thread(B, "other")
        limit_hit(script, A)
        kind, said = "torch._dynamo.exc.FailOnRecompileLimitHit", "recompile_limit reached"
        script.error(B, "thread", kind, said, 7)
        assert "CR403" not in codes(diagnose(script.finish(1)))

    def test_a_threads_error_over_a_limit_that_another_one_hit_is_a_finding(self, script):
        script.thread(A, "long")
        script.thread(B, "short")
        limit_hit(script, A)
        script.miss(B, STEP)
        kind = "torch._dynamo.exc.FailOnRecompileLimitHit"
        error = script.error(B, "thread", kind, "recompile_limit reached", 7)
        (finding,) = (f for f in diagnose(script.finish(1)).findings if f.code == "CR403")
        assert error in finding.evidence

    def test_what_used_it_up_comes_first(self, script):
        script.thread(A, "long")
        script.thread(B, "short")
        script.call(A, STEP)
        script.call(B, STEP)
        shape = {"inputs": [("x", (3,), "cpu")]}
        script.miss(A, STEP)
        script.compile(
            A, "0/1", STEP, reasons=["0/0: tensor 'x' size mismatch at index 0. 2, 3"], **shape
        )
        limit_hit(script, A)
        eager(script, B, "run_only", by=A)
        script.call(B, STEP)
        found = codes(diagnose(script.finish()))
        assert found["CR403"] == ("CR201",)


class TestRecomputation:
    WHERE = (
        ("/home/user/project/train.py", 7, "layer", True),
        ("/home/user/venv/torch/utils/checkpoint.py", 1154, "unpack_hook", False),
        ("/home/user/project/train.py", 9, "loop", True),
    )
    ERROR = "torch.utils.checkpoint.CheckpointError"
    MESSAGE = "torch.utils.checkpoint: Recomputed values have different metadata"

    def test_one_that_found_no_entry_over_the_limit(self, script):
        script.thread(A, "train")
        script.thread(B, "other")
        script.call(A, STEP)
        limit_hit(script, B)
        eager(script, A, "run_only", by=B, where=self.WHERE)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        found = codes(diagnose(script.finish()))
        assert found["CR404"] == ("CR403",)
        assert found["CR901"] == ("CR404",)

    def test_one_that_compiled_another_variant(self, script):
        script.thread(A, "train")
        script.add("guard_miss", A, {"code": STEP, "entries": 1}, where=self.WHERE)
        script.compile(A, "0/1", STEP, where=self.WHERE)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        assert "CR404" in codes(diagnose(script.finish()))

    def test_one_on_autograds_thread_is_said_to_be_there(self, script):
        where = [*self.WHERE[:2], ["/usr/lib/python3.11/contextlib.py", 81, "inner", False]]
        script.thread(A, "train")
        script.call(A, STEP)
        script.backward(A)
        eager(script, AUTOGRAD, "run_only", by=A, where=where)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        report = diagnose(script.finish())
        (finding,) = (f for f in report.findings if f.code == "CR404")
        assert (
            f"Inside a recomputation in `autograd-{AUTOGRAD}` `step`" in finding.statements[1].text
        )

    @pytest.mark.parametrize("callers", [1, 2])
    def test_for_whom_autograds_thread_recomputed_is_said_only_if_it_is_known(
        self, script, callers
    ):
        where = [*self.WHERE[:2], ["/usr/lib/python3.11/contextlib.py", 81, "inner", False]]
        for tid, name in ((A, "train-0"), (B, "train-1")):
            script.thread(tid, name)
            script.call(tid, STEP)
            script.backward(tid)
        for tid in (A, B)[:callers]:
            script.add("autograd", AUTOGRAD, {"behalf_tids": [tid]}, where=where)
        eager(script, AUTOGRAD, "run_only", by=A, where=where)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        report = diagnose(script.finish())
        (finding,) = (f for f in report.findings if f.code == "CR404")
        unknown = [s.text for s in finding.statements if s.certainty == "unknown"]
        assert len(unknown) == callers - 1
        assert all("`train-0` and `train-1`" in text for text in unknown)

    def test_autograds_thread_that_worked_for_others_alone_shows_nothing(self, script):
        where = [*self.WHERE[:2], ["/usr/lib/python3.11/contextlib.py", 81, "inner", False]]
        for tid, name in ((A, "train-0"), (B, "train-1")):
            script.thread(tid, name)
            script.call(tid, STEP)
            script.backward(tid)
        script.add("autograd", AUTOGRAD, {"behalf_tids": [B]}, where=where)
        eager(script, AUTOGRAD, "run_only", by=AUTOGRAD, where=where)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        assert "CR404" not in codes(diagnose(script.finish()))

    def test_without_another_path_the_program_is_at_fault(self, script):
        script.thread(A, "train")
        script.call(A, STEP)
        eager(script, A, "no_graph", by=A, where=self.WHERE)
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        report = diagnose(script.finish())
        assert "CR404" not in codes(report)
        assert report.verdict == "found"

    def test_an_eager_call_of_the_threads_own_doing_outside_it_shows_nothing(self, script):
        script.thread(A, "train")
        stance(script, A)
        eager(script, A, "stance", by=A, detail="force_eager")
        script.error(A, "thread", self.ERROR, self.MESSAGE)
        assert "CR404" not in codes(diagnose(script.finish()))


class TestWarning:
    def dense(self, tmp_path, *, torch="2.13.0", meanwhile=True, wrapped=HOP):
        script = Script(tmp_path, torch=torch)
        script.thread(A, "compiler")
        script.thread(B, "drafter")
        script.begin(A, "0/0", STEP)
        if not meanwhile:
            script.end(A, "0/0", STEP)
        if wrapped:
            script.add("wrapper", B, {"code": wrapped, "first": True}, where=frames("loop"))
        if meanwhile:
            script.end(A, "0/0", STEP)
        data = {"kind": "fallback", "shape": [1, 1, 8, 8], "dtype": "torch.float32"}
        script.add("dense_attention", B, data, where=frames("loop"))
        return codes(diagnose(script.finish()))

    def test_a_compile_that_had_ended_when_the_kernel_ran_still_hid_it(self, tmp_path):
        assert self.dense(tmp_path) == {"CR401": (), "CR405": ("CR401",)}

    def test_without_a_compile_at_the_time_it_was_given(self, tmp_path):
        assert self.dense(tmp_path, meanwhile=False) == {"CR401": ()}

    def test_up_to_2_12_a_compile_elsewhere_hides_nothing(self, tmp_path):
        assert self.dense(tmp_path, torch="2.12.1") == {"CR401": ()}

    def test_the_operator_called_by_itself_gives_no_warning(self, tmp_path):
        assert self.dense(tmp_path, wrapped=None) == {"CR401": ()}

    def test_what_else_torch_compiles_for_its_own_use_gives_none_either(self, tmp_path):
        other = {**code(8, "run_joint", internal=True), "file": "/venv/torch/_functorch/x.py"}
        assert self.dense(tmp_path, wrapped=other) == {"CR401": ()}

    @pytest.mark.parametrize("name", ["_flex_attention_hop_wrapper", "run_joint"])
    def test_only_what_flex_attention_compiles_shows_an_uncompiled_call(self, script, name):
        own = code(8, name, internal=True)
        script.compile(MAIN, "1/0", own)
        data = {"kind": "fallback", "shape": [1, 1, 8, 8], "dtype": "torch.float32"}
        script.add("dense_attention", MAIN, data, where=frames("loop"))
        (finding,) = diagnose(script.finish()).findings
        said = any("only an uncompiled" in s.text for s in finding.statements)
        assert said == (name == HOP["name"])
