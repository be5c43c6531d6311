"""CR307, CR313 to CR317: hangs around the compile lock, forks, imports, and errors that say it."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, PID, Script, code, frames
from .rules import A, B, codes, find, roots, two_threads, warm

LOCK = "dynamo's compile lock"
AUTOGRAD_FRAMES = [
    *frames("loop"),
    ["/home/user/venv/torch/autograd/graph.py", 979, "_engine_run_backward", False],
]


def wait(tid, what, *, read=False, holds=(), pid=PID):
    return {
        "pid": pid,
        "tid": tid,
        "thread": "",
        "what": what,
        "read": read,
        "holds": list(holds),
        "function": "f",
        "file": "/home/user/project/train.py",
        "line": 3,
    }


def hung(script, *waits):
    return diagnose(
        script.finish(
            None,
            end=False,
            signal=15,
            deadline_hit=True,
            idle_at_deadline=True,
            sent=["SIGTERM"],
            waits=list(waits),
        )
    )


class TestLockOrder:
    @pytest.fixture(autouse=True)
    def crossed(self, script):
        two_threads(script)
        script.begin(A, "0/0")
        script.wait(B, A, "enter")

    def test_both_locks_and_who_holds_which(self, script):
        report = hung(script, wait(A, "`app`", read=True), wait(B, LOCK, holds=["app"]))
        assert (codes(report), roots(report)) == ({"CR307"}, {"CR307"})
        assert report.headline == (
            "The program hung over two locks taken crosswise: `drafter-0` held dynamo's compile "
            "lock while it compiled `flex_attention` and waited for `app`; `drafter-1` held `app` "
            "and waited for the compile lock."
        )
        finding = find(report, "CR307")
        assert [s.certainty for s in finding.statements[:3]] == ["observed", "inferred", "inferred"]
        assert [thread.name for thread in finding.threads] == ["drafter-0", "drafter-1"]

    def test_threads_by_what_faulthandler_calls_them(self, script):
        """It knows no native ids, and the id that it gives a thread is another's afterwards."""
        gone = {"child_tid": 4009, "child_ident": 0x7F01, "name": "gone"}
        script.add("thread_start", MAIN, gone)
        script.add("thread_end", 4009)
        for tid, ident in ((A, 0x7F00), (B, 0x7F01)):
            script.add("wrapper", tid, {"code": code(), "first": False}, ident=ident)
        first, second = wait(0, "`app`", read=True), wait(0, LOCK, holds=["app"])
        report = hung(script, {**first, "ident": 0x7F00}, {**second, "ident": 0x7F01})
        assert codes(report) == {"CR307"}
        assert "`drafter-1` held `app` and waited for the compile lock" in report.headline

    def test_a_thread_that_nobody_recorded_is_named_as_faulthandler_does(self, script):
        told = {**wait(0, "`app`", read=True), "ident": 0x7F05, "thread": "0x7f05"}
        report = hung(script, told)
        assert codes(report) == {"CR903"}
        assert any(s.text.startswith("`0x7f05`") for s in find(report, "CR903").statements)

    def test_a_lock_whose_holder_the_source_does_not_tell(self, script):
        finding = find(hung(script, wait(A, "`self.lock`", read=True), wait(B, LOCK)), "CR307")
        assert "is not to be read off the source" in finding.statements[2].text

    def test_a_ring_of_three(self, script):
        c = script.thread(4003, "loader")
        waits = (
            wait(A, "`app`", read=True),
            wait(B, LOCK, holds=["pool"]),
            wait(c, "`pool`", read=True, holds=["app"]),
        )
        report = hung(script, *waits)
        assert codes(report) == {"CR307"}
        assert "`loader` held `app`" in report.headline

    @pytest.mark.parametrize("what", ["an item of a queue", "the network", ""])
    def test_what_is_no_lock_of_the_programs_is_a_hang(self, script, what):
        assert codes(hung(script, wait(A, what), wait(B, LOCK))) == {"CR903"}

    def test_a_compile_that_only_takes_long_is_no_hang(self, script):
        folder = script.finish(
            None, end=False, signal=15, deadline_hit=True, idle_at_deadline=False, sent=["SIGTERM"]
        )
        assert "CR307" not in codes(diagnose(folder))


FORK = {"parent": 3000, "by": 3000, "owner": 3007, "owner_name": "trainer", "compiling": True}


class TestFork:
    def test_the_forked_process_waits_for_a_thread_that_it_does_not_have(self, script):
        script.add("fork", MAIN, FORK, where=frames("start"))
        script.wait(MAIN, 3007, "enter")
        report = diagnose(script.finish(None, end=False, signal=15, sent=["SIGTERM"]))
        finding = find(report, "CR313")
        assert finding.root
        assert "`trainer` of process 3000" in report.headline
        assert finding.stacks[0].title == "was forked"

    def test_one_that_never_compiles_is_a_note(self, script):
        warm(script)
        script.add("fork", MAIN, FORK)
        report = diagnose(script.finish())
        assert (codes(report), [note.code for note in report.notes]) == (set(), ["CR313"])

    def test_a_wait_for_a_thread_of_its_own_is_none_of_it(self, script):
        script.add("fork", MAIN, FORK)
        two_threads(script)
        script.begin(A, "0/0")
        script.wait(B, A, "enter")
        assert "CR313" not in codes(diagnose(script.finish(None, end=False, signal=9)))

    def test_its_parents_wait_for_it_is_no_hang_of_its_own(self, tmp_path):
        parent = Script(tmp_path)
        warm(parent)
        child = Script(tmp_path / "child", pid=5000)
        child.add("fork", 5000, {**FORK, "parent": PID})
        child.wait(5000, 3007, "enter")
        waits = (wait(MAIN, "another process's end"), wait(5000, LOCK, pid=5000))
        hung(parent, *waits)
        assert codes(diagnose(tmp_path)) == {"CR903"}
        source = child.finish(end=False)
        (tmp_path / "events-5000.jsonl").write_text((source / "events.jsonl").read_text())
        assert codes(diagnose(tmp_path)) == {"CR313"}


class TestBackwardContext:
    MESSAGE = "cannot enter context: <_contextvars.Context object at 0x7f00> is already entered"

    def test_autograds_thread_and_the_caller(self, script):
        """Hand-made: it takes a GPU and torch 2.12 or 2.13."""
        warm(script)
        script.thread(A, "trainer")
        script.call(A)
        script.error(A, "thread", "RuntimeError", self.MESSAGE, where=AUTOGRAD_FRAMES)
        report = diagnose(script.finish())
        assert roots(report) == {"CR314"}
        assert find(report, "CR314").statements[0].certainty == "observed"

    def test_the_programs_own_context_is_its_own(self, script):
        warm(script)
        own = [*AUTOGRAD_FRAMES, *frames("run_in_context")]
        script.error(MAIN, "main", "RuntimeError", self.MESSAGE, where=own)
        assert codes(diagnose(script.finish(1))) == {"CR905"}


class TestContainer:
    KIND = "torch._dynamo.exc.InternalTorchDynamoError"

    def failing(self, script, text):
        script.begin(A, "0/1")
        script.end(A, "0/1", ok=False, error=text)
        script.error(A, "thread", self.KIND, f"RuntimeError: {text}\n\nfrom user code: ...")
        return diagnose(script.finish())

    @pytest.mark.parametrize(
        "text",
        [
            "OrderedDict mutated during iteration",
            "dictionary changed size during iteration",
            "Set changed size during iteration",
            "dictionary keys changed during iteration",
            "deque mutated during iteration",
        ],
    )
    def test_while_others_run(self, script, text):
        two_threads(script)
        report = self.failing(script, text)
        assert "CR315" in roots(report)
        assert "while it compiled `flex_attention`" in find(report, "CR315").statements[0].text or (
            "while it compiled `flex_attention`" in report.headline
        )

    def test_another_error_of_dynamos_is_none(self, script):
        two_threads(script)
        assert "CR315" not in codes(self.failing(script, "something else"))

    def test_the_programs_own_loop_is_its_own(self, script):
        two_threads(script)
        text = "dictionary changed size during iteration"
        script.error(A, "thread", "RuntimeError", text, where=frames("loop"))
        assert "CR315" not in codes(diagnose(script.finish()))


class TestCompiledAutograd:
    TEXT = "Trying to run compiled autograd within another compiled autograd call, this is not"

    def failing(self, script, others):
        two_threads(script)
        data = {"count": 1, "error": f"NotImplementedError: {self.TEXT}"}
        script.add("backward", B, {**data, "in_backward_tids": others}, where=frames("loop"))
        script.error(B, "thread", "NotImplementedError", self.TEXT, where=AUTOGRAD_FRAMES)
        return diagnose(script.finish())

    def test_while_another_thread_is_in_a_backward(self, script):
        report = self.failing(script, [A])
        assert "CR316" in roots(report)
        assert [t.name for t in find(report, "CR316").threads] == ["drafter-1", "drafter-0"]

    def test_a_nested_backward_of_one_thread_is_its_own(self, script):
        assert "CR316" not in codes(self.failing(script, []))


class TestLazyImport:
    def test_a_deadlock_that_python_saw(self, script):
        two_threads(script)
        text = "deadlock detected by _ModuleLock('torch._dynamo') at 1234"
        script.error(A, "thread", "_frozen_importlib._DeadlockError", text)
        assert "CR317" in roots(diagnose(script.finish()))

    def test_a_half_made_module(self, script):
        two_threads(script)
        text = (
            "cannot import name 'IndentedBuffer' from partially initialized module "
            "'torch._inductor.utils' (most likely due to a circular import)"
        )
        script.error(A, "thread", "ImportError", text)
        report = diagnose(script.finish())
        assert "CR317" in roots(report)
        assert "drafter-1" in find(report, "CR317").statements[1].text

    def test_another_packages_is_none_of_torchs(self, script):
        two_threads(script)
        text = "cannot import name 'x' from partially initialized module 'torchvision.ops'"
        script.error(A, "thread", "ImportError", text)
        script.error(B, "thread", "_frozen_importlib._DeadlockError", "_ModuleLock('numpy')")
        assert "CR317" not in codes(diagnose(script.finish()))

    def test_one_thread_alone_has_a_circular_import(self, tmp_path):
        script = Script(tmp_path)
        script.call(MAIN, of=code())
        text = "cannot import name 'x' from partially initialized module 'torch._inductor.utils'"
        script.error(MAIN, "main", "ImportError", text)
        assert codes(diagnose(script.finish(1))) == {"CR905"}
