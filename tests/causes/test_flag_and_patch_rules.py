"""CR304 and CR308: who took whose compile for its own, and which traces left their patches."""

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import SIZE, A, B, codes, find, roots, two_threads, warm

PATCHER = [
    *frames("export"),
    ["/home/user/venv/torch/fx/_symbolic_trace.py", 1231, "_new_patcher", False],
]


class TestIsCompiling:
    def read(self, script, tid, compiling):
        data = {"compiling_tids": compiling, "count": 1}
        return script.add("is_compiling", tid, data, where=frames("serve"))

    def test_names_the_reader_and_whose_compile_it_was(self, script):
        warm(script)
        script.thread(B, "server")
        script.begin(MAIN, "0/1")
        seq = self.read(script, B, [MAIN])
        script.end(MAIN, "0/1")
        finding = find(diagnose(script.finish()), "CR304")
        assert finding.root
        assert [thread.tid for thread in finding.threads] == [B, MAIN]
        assert seq in finding.statements[0].evidence

    def test_follows_from_what_explains_the_compile(self, script):
        warm(script)
        two_threads(script)
        script.miss(A)
        script.begin(A, "0/1")
        self.read(script, B, [A])
        script.end(A, "0/1", reasons=[SIZE])
        report = diagnose(script.finish())
        assert roots(report) == {"CR201"}
        assert find(report, "CR304").follows_from == ("CR201",)

    def test_without_another_compile_it_is_nothing(self, script):
        warm(script)
        self.read(script, MAIN, [])
        assert codes(diagnose(script.finish())) == set()


class TestPatcher:
    def trace(self, script, tid, edge):
        where = frames("export") if edge == "enter" else None
        script.add("fx_trace", tid, {"tracer": "Tracer", "in_compile": False}, edge, where=where)

    def left(self, script, **data):
        clear = {"fx_flag_clear": True, "module_call_original": True, "patcher_clear": True}
        script.add("invariants", MAIN, {**clear, "busy_tids": [], **data})

    def test_crossing_traces_are_named(self, script):
        warm(script)
        two_threads(script)
        for tid, edge in ((A, "enter"), (B, "enter"), (A, "exit"), (B, "exit")):
            self.trace(script, tid, edge)
        error = script.error(B, "thread", "AssertionError", "", where=PATCHER)
        self.left(script, module_call_original=False)
        finding = find(diagnose(script.finish()), "CR308")
        assert error in finding.evidence
        assert [s.certainty for s in finding.statements] == ["observed", "observed", "inferred"]
        assert (
            "`drafter-1` began an FX trace within one of `drafter-0`" in finding.statements[2].text
        )

    def test_nested_traces_did_not_leave_it(self, script):
        warm(script)
        two_threads(script)
        for tid, edge in ((A, "enter"), (B, "enter"), (B, "exit"), (A, "exit")):
            self.trace(script, tid, edge)
        self.left(script, patcher_clear=False)
        finding = find(diagnose(script.finish()), "CR308")
        assert finding.statements[-1].certainty == "unknown"

    def test_a_thread_that_still_traces_may_have_patched(self, script):
        warm(script)
        script.thread(A, "drafter")
        self.trace(script, A, "enter")
        self.left(script, module_call_original=False, busy_tids=[A])
        assert "CR308" not in codes(diagnose(script.finish()))

    def test_another_assertion_is_the_programs_own(self, script):
        warm(script)
        script.thread(A, "drafter")
        script.error(A, "thread", "AssertionError", "CURRENT_PATCHER", where=frames("mine"))
        assert "CR308" not in codes(diagnose(script.finish()))
