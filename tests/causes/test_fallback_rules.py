"""CR107, CR401 and CR403: limits hit, and dense attention."""

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import SIZE, A, codes, roots


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
        script.error(
            A,
            "thread",
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 4.00 GiB",
            1,
        )
        report = diagnose(script.finish(1))
        assert codes(report) == {"CR401", "CR402"}
        assert roots(report) == {"CR401"}
        assert "4.0 GiB" in report.headline
        assert "`attend`" in report.findings[0].statements[0].text
        assert report.counts.fallbacks == 1

    def test_the_reference_kernel_is_none(self, script):
        script.compile(MAIN, "0/0")
        script.add("dense_attention", MAIN, {"kind": "reference", "shape": [1, 1, 8, 8]})
        assert diagnose(script.finish()).verdict == "clean"
