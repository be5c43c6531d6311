"""Options of torch.compile that a compile lost to another thread."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, context
from .rules import SIZE, A

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
