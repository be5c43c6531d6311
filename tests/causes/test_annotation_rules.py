"""CR310: who was compiling or building a mask when an annotation failed."""

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, frames
from .rules import SIZE, A, B, codes, find, roots, two_threads, warm

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
