"""CR101 to CR104: which entry decides, and whose state it was."""

from harness.diagnosis.build import diagnose

from .build import MAIN, code, context
from .rules import GRAD_MODE, SIZE, A, B, codes, find, roots, two_threads, warm


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

    def test_a_thread_that_warms_up_in_both_modes_is_covered_in_both(self, script):
        """What it compiled before it said that its warm-up was over is the warm-up's."""
        warm(script, grad=False)
        script.miss(MAIN)
        script.compile(MAIN, "0/1", reasons=[GRAD_MODE])
        script.add("phase", MAIN, {"name": "warmup_done"})
        two_threads(script)
        assert diagnose(script.finish()).verdict == "clean"

    def test_a_thread_in_the_other_mode_after_the_warm_up_is_not(self, script):
        warm(script, grad=False)
        script.add("phase", MAIN, {"name": "warmup_done"})
        two_threads(script)
        script.miss(MAIN)
        script.compile(MAIN, "0/1", reasons=[GRAD_MODE])
        assert roots(diagnose(script.finish())) == {"CR101"}

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
