"""Rules on hand-made recordings: what takes two GPUs, an unlucky moment or an odd end to happen."""

import pytest

from harness.causes import CAUSES
from harness.diagnosis.build import diagnose

from .build import FX_MESSAGE, MAIN, Script, code, context, frames, fx_frames

A, B, C, DUMMY = 4001, 4002, 4003, 4090
GRAD_MODE = "0/0: GLOBAL_STATE changed: grad_mode "
OTHER_DEVICE = (
    "0/0: tensor 'query' Tensor device index mismatch. "
    "Expected device index to be \x00, actual \x01"
)
SIZE = "0/0: tensor 'query' size mismatch at index 2. expected 512, actual 640"


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path / "run")


def roots(report):
    return {finding.code for finding in report.findings if finding.root}


def codes(report):
    return {finding.code for finding in report.findings}


def find(report, wanted):
    return next(finding for finding in report.findings if finding.code == wanted)


def warm(script, *, grad=True, number="0/0", **rest):
    script.call(MAIN, ctx=context(grad=grad))
    script.compile(MAIN, number, ctx=context(grad=grad), **rest)
    script.backward(MAIN)


def two_threads(script):
    script.thread(A, "drafter-0")
    script.thread(B, "drafter-1")
    script.call(A)
    script.call(B)


class TestDevice:
    def recording(self, script):
        inputs = [("query", (1, 8, 512, 64), "cuda:0")]
        warm(script, inputs=inputs)
        two_threads(script)
        script.miss(B)
        script.compile(
            B, "0/1", reasons=[OTHER_DEVICE], inputs=[("query", (1, 8, 512, 64), "cuda:1")]
        )
        script.call(A)
        script.backward(B)
        return script.finish()

    def test_a_device_that_was_not_warmed(self, script):
        report = diagnose(self.recording(script))
        assert codes(report) == roots(report) == {"CR204"}
        assert [thread.tid for thread in find(report, "CR204").threads] == [B]

    def test_without_the_cause_nothing_is_found(self, script):
        fewer = [cause for cause in CAUSES if cause.EXPLANATION.code != "CR204"]
        assert codes(diagnose(self.recording(script), causes=fewer)) == set()

    def test_a_size_that_a_later_entry_rejects_follows_from_it(self, script):
        warm(script)
        two_threads(script)
        script.compile(B, "0/1", reasons=[OTHER_DEVICE])
        script.miss(A)
        script.compile(A, "0/2", reasons=[OTHER_DEVICE, SIZE.replace("0/0", "0/1")])
        report = diagnose(script.finish())
        assert roots(report) == {"CR204"}
        assert find(report, "CR201").follows_from == ("CR204",)


class TestThreadState:
    def test_the_nearest_entry_decides(self, script):
        """Warmed in both grad modes, so a new size is a new size and nothing else."""
        warm(script, grad=False)
        script.compile(MAIN, "0/1", reasons=[GRAD_MODE])
        two_threads(script)
        script.miss(A)
        script.compile(A, "0/2", reasons=[SIZE.replace("0/0", "0/1"), GRAD_MODE])
        script.call(B)
        assert roots(diagnose(script.finish())) == {"CR201"}

    def test_a_size_behind_the_grad_mode_follows_from_it(self, script):
        warm(script, grad=False)
        two_threads(script)
        script.miss(A)
        script.compile(A, "0/1", reasons=[GRAD_MODE])
        script.miss(A)
        script.compile(A, "0/2", reasons=[SIZE.replace("0/0", "0/1"), GRAD_MODE])
        script.call(B)
        report = diagnose(script.finish())
        assert roots(report) == {"CR101"}
        assert find(report, "CR201").follows_from == ("CR101",)

    def test_a_thread_that_does_both_itself_is_no_finding(self, script):
        script.thread(A, "worker")
        script.thread(B, "other")
        script.compile(A, "0/0", ctx=context(grad=False))
        script.call(B, ctx=context(grad=False))
        script.miss(A)
        script.compile(A, "0/1", reasons=[GRAD_MODE])
        report = diagnose(script.finish())
        assert report.verdict == "clean"
        assert report.counts.compiles_after_warmup == 1

    def test_inference_mode_decides_though_torch_says_grad_mode(self, script):
        ctx = context(grad=False, inference=True)
        script.compile(MAIN, "0/0", ctx=ctx)
        script.thread(A, "trainer")
        script.miss(A)
        script.compile(A, "0/1", reasons=[GRAD_MODE])
        assert codes(diagnose(script.finish())) == {"CR102"}

    def test_inference_mode_decides_though_torch_says_dispatch_keys(self, script):
        script.compile(MAIN, "0/0", ctx=context(grad=False, inference=True))
        script.thread(A, "evaluator")
        script.miss(A, ctx=context(grad=False))
        keys = "0/0: tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU), actual"
        script.compile(A, "0/1", ctx=context(grad=False), reasons=[keys])
        assert codes(diagnose(script.finish())) == {"CR102"}

    def test_torch_names_two_fields_and_both_are_found(self, script):
        script.compile(MAIN, "0/0", ctx=context(grad=False, autocast="torch.bfloat16"))
        script.thread(A, "trainer")
        script.miss(A)
        both = "0/0: GLOBAL_STATE changed: grad_mode autocast(cuda)_enabled "
        script.compile(A, "0/1", reasons=[both])
        assert roots(diagnose(script.finish())) == {"CR101", "CR103"}

    def test_a_miss_without_a_compile_is_judged_by_its_context(self, script):
        warm(script, grad=False)
        script.thread(A, "trainer")
        script.miss(A)
        (finding,) = diagnose(script.finish()).findings
        assert finding.code == "CR101"
        assert finding.statements[0].certainty == "inferred"

    def test_torchs_own_functions_are_left_out(self, script):
        own = code(7, "_flex_attention_hop_wrapper", internal=True)
        script.compile(MAIN, "0/0", of=own, ctx=context(grad=False))
        script.thread(A, "trainer")
        script.call(A, of=code(2))
        script.compile(A, "0/1", of=own, reasons=[GRAD_MODE])
        script.compile(A, "1/0", of=code(2))
        report = diagnose(script.finish())
        assert report.verdict == "clean"
        assert report.counts.compiles == 1


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

    def test_where_beginnings_go_unseen_a_compile_without_a_miss_tells(self, tmp_path):
        gone = {"wrapper": "missing", "lock": "missing"}
        report = self.recording(tmp_path, probes=gone, second="unseen")
        assert roots(report) == {"CR208"}

    def test_a_compile_after_a_reset_is_no_cold_start(self, tmp_path):
        assert codes(self.recording(tmp_path, second="unseen")) == set()


class TestNewShape:
    def recording(self, script, *, done):
        warm(script)
        if done:
            script.add("phase", MAIN, {"name": "warmup_done"}, "instant")
        script.thread(A, "trainer")
        script.miss(A)
        script.compile(A, "0/1", reasons=[SIZE])
        return script.finish()

    def test_alone_it_is_a_note(self, script):
        report = diagnose(self.recording(script, done=False))
        assert report.verdict == "clean"
        assert [note.code for note in report.notes] == ["CR201"]

    def test_after_the_warm_up_was_declared_over_it_is_a_finding(self, script):
        assert roots(diagnose(self.recording(script, done=True))) == {"CR201"}

    def test_a_warm_up_at_two_lengths_by_a_thread_that_goes_on_calling(self, script):
        """Main's own interval meets the workers', but nobody else was there when it compiled."""
        warm(script)
        script.miss(MAIN)
        script.compile(MAIN, "0/1", reasons=[SIZE])
        two_threads(script)
        script.call(MAIN)
        assert diagnose(script.finish()).verdict == "clean"


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


class TestTorchsOwnThreads:
    """A thread that torch started for itself fails without a frame of the program's."""

    POOL = "/home/user/venv/lib/python3.12/site-packages/torch/_inductor/subproc_pool.py"
    LIBRARY = ([POOL, 5, "_read_thread", False],)

    def start(self, script, *nearest):
        script.names[C] = "InductorSubproc"
        where = [*nearest, [self.POOL, 230, "__init__", False], *frames("main")]
        script.add("thread_start", MAIN, {"child_tid": C, "name": "pool"}, where=where)

    def fail(self, script, via, where):
        future = 1 if via == "future" else None
        script.error(C, via, "RuntimeError", "SubprocPool closed", 3, where=where, future=future)

    @pytest.mark.parametrize("via", ["future", "thread"])
    def test_is_a_note(self, script, via):
        script.compile(MAIN, "0/0")
        self.start(script)
        self.fail(script, via, self.LIBRARY)
        report = diagnose(script.finish())
        assert report.verdict == "clean"
        assert [note.code for note in report.notes] == ["CR901"]
        assert report.counts.thread_errors == 0
        assert report.errors[0].torchs_own

    @pytest.mark.parametrize(("via", "code"), [("future", "CR901"), ("thread", "CR905")])
    def test_with_a_frame_of_the_programs_is_the_programs(self, script, via, code):
        script.compile(MAIN, "0/0")
        self.start(script)
        self.fail(script, via, [*self.LIBRARY, *frames("loop")])
        report = diagnose(script.finish())
        assert code in codes(report)
        assert report.counts.thread_errors == 1

    @pytest.mark.parametrize(("via", "code"), [("future", "CR901"), ("thread", "CR905")])
    def test_started_by_the_program_is_the_programs(self, script, via, code):
        script.compile(MAIN, "0/0")
        self.start(script, *frames("submit", library=True), *frames("loop"))
        self.fail(script, via, self.LIBRARY)
        report = diagnose(script.finish())
        assert code in codes(report)
        assert not report.errors[0].torchs_own

    def test_errors_that_are_alike_are_one_note(self, script):
        script.compile(MAIN, "0/0")
        self.start(script)
        for number in range(3):
            script.error(C, "future", "RuntimeError", "closed", number + 1, self.LIBRARY, number)
        (note,) = diagnose(script.finish()).notes
        assert "3 futures" in note.text


PATCHED = {"assume_static_by_default": False}


class TestLostOptions:
    """Up to torch 2.11 one thread's call can undo what another's patched for its compile."""

    def compiles(self, script, other):
        script.call(MAIN, ctx=context())
        script.compile(MAIN, "0/0", ctx=context(config=PATCHED))
        script.thread(A, "drafter-0")
        script.call(A, ctx=context(config=PATCHED))
        script.compile(other, "0/1", reasons=[SIZE], ctx=context())
        return diagnose(script.finish())

    def notes(self, report):
        return [note for note in report.notes if "assume_static_by_default" in note.text]

    @pytest.mark.parametrize(("torch", "number"), [("2.11.0", 1), ("2.12.0", 0), ("", 0)])
    def test_a_difference_between_threads_is_noted(self, tmp_path, torch, number):
        report = self.compiles(Script(tmp_path, torch=torch), A)
        assert len(self.notes(report)) == number

    def test_one_thread_may_compile_both_ways(self, tmp_path):
        assert not self.notes(self.compiles(Script(tmp_path, torch="2.11.0"), MAIN))

    @pytest.mark.parametrize(("torch", "config"), [("2.11.0", {}), ("2.12.0", PATCHED)])
    def test_a_patch_is_no_config_of_the_thread_that_saw_it(self, tmp_path, torch, config):
        report = self.compiles(Script(tmp_path, torch=torch), A)
        assert [t.config for t in report.threads if t.thread.tid == A] == [config]


class TestFxFlag:
    def flagged(self, script, tid, tracing, nested="raise", count=1):
        data = {
            "code": code(),
            "fx_flag": True,
            "nested": nested,
            "tracing_tids": tracing,
            "count": count,
        }
        return script.add("wrapper", tid, data, where=frames("loop"))

    def test_the_crash_follows_from_what_explains_the_compile(self, script):
        warm(script, grad=False)
        two_threads(script)
        script.miss(A)
        script.begin(A, "0/1")
        self.flagged(script, B, [A])
        script.error(B, "thread", "RuntimeError", FX_MESSAGE, where=fx_frames())
        script.end(A, "0/1", reasons=[GRAD_MODE])
        report = diagnose(script.finish())
        assert roots(report) == {"CR101"}
        assert find(report, "CR301").follows_from == ("CR101",)
        assert find(report, "CR901").follows_from == ("CR301",)
        assert report.errors[0].explained_by == ("CR301",)

    def test_a_thread_that_traces_itself_is_the_users_error(self, script):
        script.thread(A, "exporter")
        script.call(A)
        script.compile(A, "0/0")
        self.flagged(script, A, [A])
        script.error(A, "thread", "RuntimeError", FX_MESSAGE, where=fx_frames())
        assert codes(diagnose(script.finish())) == {"CR905"}

    def test_from_the_error_alone_it_is_inferred(self, tmp_path):
        script = Script(tmp_path, probes={"wrapper": "missing", "fx": "missing"})
        script.thread(A, "drafter-0")
        script.thread(B, "drafter-1")
        script.compile(A, "0/0")
        script.begin(A, "0/1")
        script.error(B, "thread", "RuntimeError", FX_MESSAGE, where=fx_frames())
        script.end(A, "0/1")
        report = diagnose(script.finish(1))
        assert roots(report) == {"CR301"}
        finding = find(report, "CR301")
        assert [s.certainty for s in finding.statements] == ["observed", "inferred"]

    def test_the_words_of_the_error_elsewhere_prove_nothing(self, script):
        script.thread(A, "reader")
        script.call(A)
        script.compile(A, "0/0")
        script.error(A, "thread", "RuntimeError", FX_MESSAGE, where=frames("parse_log"))
        assert codes(diagnose(script.finish())) == {"CR905"}

    def test_several_calls_without_a_tracer_mean_that_it_was_left_set(self, script):
        script.thread(A, "server")
        script.compile(A, "0/0")
        for number in range(4):
            self.flagged(script, A, [], count=number + 1)
        report = diagnose(script.finish())
        assert codes(report) == {"CR302"}

    def test_one_call_without_a_tracer_among_others_is_an_unlucky_moment(self, script):
        script.thread(A, "server")
        script.thread(B, "tracer")
        script.compile(A, "0/0")
        script.add("fx_trace", B, {"tracer": "Tracer"}, "enter")
        for number in range(3):
            self.flagged(script, A, [B], count=number + 1)
        script.add("fx_trace", B, {"tracer": "Tracer"}, "exit")
        self.flagged(script, A, [], count=4)
        assert codes(diagnose(script.finish())) == {"CR301"}

    def test_left_set_at_the_end(self, script):
        script.compile(MAIN, "0/0")
        script.add("invariants", MAIN, {"fx_flag_clear": False, "busy_tids": []})
        assert codes(diagnose(script.finish())) == {"CR302"}

    def test_set_at_the_end_while_a_thread_is_busy_is_nothing(self, script):
        script.compile(MAIN, "0/0")
        script.add("invariants", MAIN, {"fx_flag_clear": False, "busy_tids": [A]})
        assert diagnose(script.finish()).verdict == "clean"


ANNOTATE = [
    *frames("build_mask"),
    ["/home/user/venv/torch/fx/traceback.py", 363, "annotate", False],
]


class TestAnnotation:
    def error(self, script, tid, **rest):
        return script.error(tid, "thread", "KeyError", "'custom'", where=ANNOTATE, **rest)

    def test_follows_from_what_explains_the_compile(self, script):
        warm(script)
        two_threads(script)
        script.miss(A)
        script.begin(A, "0/1")
        mask = {"compiling_tids": [A], "error": "KeyError: 'custom'"}
        script.add("block_mask", B, mask)
        self.error(script, B)
        script.end(A, "0/1", reasons=[SIZE])
        report = diagnose(script.finish())
        assert roots(report) == {"CR201"}
        assert find(report, "CR310").follows_from == ("CR201",)

    def test_a_mask_error_that_the_program_caught_counts(self, script):
        warm(script)
        script.thread(B, "drafter")
        script.begin(MAIN, "0/1")
        script.add("block_mask", B, {"compiling_tids": [MAIN], "error": "KeyError: 'custom'"})
        script.end(MAIN, "0/1")
        assert codes(diagnose(script.finish())) == {"CR310"}

    def test_the_compile_may_have_ended_when_the_thread_dies(self, tmp_path):
        script = Script(tmp_path, probes={"block_mask": "missing"})
        warm(script)
        script.thread(B, "drafter")
        script.begin(MAIN, "0/1")
        script.end(MAIN, "0/1")
        self.error(script, B)
        assert roots(diagnose(script.finish(1))) == {"CR310"}

    def test_two_masks_at_once_are_inferred(self, script):
        warm(script)
        two_threads(script)
        script.t += 5_000_000_000
        script.add("block_mask", A, {"compiling_tids": []})
        self.error(script, B)
        finding = find(diagnose(script.finish(1)), "CR310")
        assert finding.statements[0].certainty == "inferred"

    def test_with_nobody_else_about_it_is_the_programs_own(self, script):
        warm(script)
        script.t += 5_000_000_000
        script.error(MAIN, "main", "KeyError", "'custom'", where=ANNOTATE)
        assert codes(diagnose(script.finish(1))) == {"CR905"}

    def test_the_same_error_from_the_programs_own_code_is_its_own(self, script):
        warm(script)
        script.thread(A, "drafter")
        script.begin(MAIN, "0/1")
        script.error(A, "thread", "KeyError", "'custom'", where=frames("load"))
        script.end(MAIN, "0/1")
        assert codes(diagnose(script.finish(1))) == {"CR905"}


class TestErrors:
    def crash(self, script, number=1):
        """A thread dies of an error that is explained."""
        warm(script)
        script.thread(A, "drafter")
        script.begin(MAIN, "0/1")
        script.add("block_mask", A, {"compiling_tids": [MAIN], "error": "KeyError: 'custom'"})
        script.error(A, "thread", "KeyError", "'custom'", number, where=ANNOTATE)
        script.end(MAIN, "0/1")

    def link(self, number, relation):
        return {"id": number, "type": "KeyError", "message": "'custom'", "relation": relation}

    @pytest.mark.parametrize("relation", ["cause", "context", "member"])
    def test_raised_again_in_another_ones_chain(self, script, relation):
        self.crash(script)
        links = [self.link(1, relation)]
        script.error(MAIN, "main", "RuntimeError", "a drafter died", 2, links=links)
        report = diagnose(script.finish(1))
        assert codes(report) == {"CR310"}
        assert [error.explained_by for error in report.errors] == [("CR310",), ("CR310",)]

    def test_the_same_words_again(self, script):
        self.crash(script)
        script.error(MAIN, "main", "KeyError", "'custom'", 5, where=frames("join"))
        assert codes(diagnose(script.finish(1))) == {"CR310"}

    def test_a_broken_barrier_comes_from_the_thread_that_died(self, script):
        self.crash(script)
        script.thread(B, "other")
        script.error(B, "thread", "threading.BrokenBarrierError", "", 9)
        assert codes(diagnose(script.finish(1))) == {"CR310"}

    def test_an_error_of_its_own_beside_it_is_a_second_root(self, script):
        self.crash(script)
        script.thread(B, "loader")
        script.error(B, "thread", "FileNotFoundError", "shard-7", 9)
        report = diagnose(script.finish(1))
        assert roots(report) == {"CR310", "CR905"}
        assert "FileNotFoundError" in find(report, "CR905").statements[0].text

    def test_each_exception_is_told_once(self, script):
        script.compile(MAIN, "0/0")
        script.thread(A, "loader")
        script.error(A, "thread", "ValueError", "no labels", 3)
        script.error(MAIN, "main", "ValueError", "no labels", 3)
        (finding,) = diagnose(script.finish(1)).findings
        assert (finding.code, len(finding.statements)) == ("CR905", 1)

    def test_exit_code_zero_is_said(self, script):
        script.compile(MAIN, "0/0")
        script.thread(A, "loader")
        script.error(A, "thread", "ValueError", "no labels", 3)
        report = diagnose(script.finish(0))
        assert "exit code 0" in report.findings[0].statements[0].text

    def test_an_exit_code_after_an_explained_error_is_its_consequence(self, script):
        self.crash(script)
        assert codes(diagnose(script.finish(3))) == {"CR310"}

    def test_the_last_words_are_given_with_a_bare_exit_code(self, script):
        script.compile(MAIN, "0/0")
        report = diagnose(script.finish(3, stderr_tail="Killed by quota\n"))
        assert codes(report) == {"CR905"}
        assert any("Killed by quota" in s.text for s in report.findings[0].statements)

    def test_unread_when_the_process_crashed_is_inferred(self, script):
        script.compile(MAIN, "0/0")
        script.error(MAIN, "future", "ValueError", "shard", 3, future=1)
        folder = script.finish(None, end=False, signal=11, signal_name="SIGSEGV")
        finding = find(diagnose(folder), "CR901")
        assert finding.statements[0].certainty == "inferred"

    def test_a_future_read_and_its_error_raised_in_main(self, script):
        script.compile(MAIN, "0/0")
        script.error(MAIN, "future", "ValueError", "shard", 3, future=1)
        script.add("future_read", MAIN, {"future": 1})
        script.error(MAIN, "main", "ValueError", "shard", 3)
        assert codes(diagnose(script.finish(1))) == {"CR905"}


class TestLimit:
    def recording(self, script, *, limits):
        main, worker = limits
        script.call(MAIN)
        script.begin(MAIN, "0/0", limit=main)
        script.end(MAIN, "0/0")
        script.thread(A, "worker")
        for number in range(1, 8):
            script.begin(A, f"0/{number}", limit=worker)
            script.end(A, f"0/{number}", reasons=[SIZE])
        script.begin(A, "0/8", limit=worker)
        script.end(A, "0/8", ok=False, limit_hit=True, error="recompile_limit reached")
        return script.finish()

    def test_a_limit_that_another_thread_had_raised(self, script):
        assert roots(diagnose(self.recording(script, limits=(64, 8)))) == {"CR107"}

    def test_one_limit_for_all_is_a_note(self, script):
        report = diagnose(self.recording(script, limits=(8, 8)))
        assert report.verdict == "clean"
        assert {note.code for note in report.notes} == {"CR403", "CR201"}

    def test_a_higher_limit_that_would_have_been_hit_too_is_no_cause(self, script):
        assert codes(diagnose(self.recording(script, limits=(8, 7)))) == set()


class TestDense:
    def test_memory_and_caller_are_said(self, script):
        script.thread(A, "drafter")
        script.compile(A, "0/0")
        data = {
            "kind": "fallback",
            "shape": [1, 32, 8192, 64],
            "dtype": "torch.bfloat16",
            "scores_bytes": 32 * 8192 * 8192 * 2,
            "count": 1,
        }
        script.add("dense_attention", A, data, where=frames("attend"))
        script.error(A, "thread", "torch.OutOfMemoryError", "CUDA out of memory", 1)
        report = diagnose(script.finish(1))
        assert codes(report) == {"CR401"}
        assert "4.0 GiB" in report.headline
        assert "`attend`" in report.findings[0].statements[0].text
        assert report.counts.fallbacks == 1

    def test_the_reference_kernel_is_none(self, script):
        script.compile(MAIN, "0/0")
        script.add("dense_attention", MAIN, {"kind": "reference", "shape": [1, 1, 8, 8]})
        assert diagnose(script.finish()).verdict == "clean"


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
        assert diagnose(folder).verdict == "incomplete"

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
