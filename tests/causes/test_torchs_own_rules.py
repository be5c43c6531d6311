"""Errors in threads that torch started for itself are none of the program's."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import C, codes


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
