"""CR301 and CR302: whose trace a call saw, and when the flag was left set."""

from harness.diagnosis.build import diagnose

from .build import FX_MESSAGE, MAIN, Script, code, frames, fx_frames
from .rules import GRAD_MODE, A, B, codes, find, roots, two_threads, warm


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
