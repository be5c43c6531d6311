"""Which errors are accounted for by findings, and which are the program's own."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, frames
from .rules import A, B, codes, find, roots, warm

ANNOTATE = [
    *frames("build_mask"),
    ["/home/user/venv/torch/fx/traceback.py", 363, "annotate", False],
]


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
