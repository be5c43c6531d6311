"""CR305, CR306, CR309, CR601: what makes an event or an error theirs, and what does not."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, context, frames
from .rules import A, B, codes, find, roots, two_threads, warm

NO_FRAMES = (
    "torch.compile with fullgraph=True found no compiled frames. Compilation was not attempted "
    "and no cached compiled code was found."
)
PENDING = "Cannot clear callbacks while 1 are pending"
POINTER = "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)"
PATCHED = {"assume_static_by_default": False}
FATAL = (
    "Fatal Python error: Segmentation fault\n\n"
    "Current thread 0x00007f0000000001 (most recent call first):\n"
    '  File "{}", line 1166 in compile_wrapper\n'
    '  File "/home/user/project/train.py", line 9 in loop\n'
)
IN_DYNAMO = "/home/user/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py"


def reset(script, tid, *, calling=(), compiling=(), error="", end=True):
    data = {"calling_tids": list(calling), "compiling_tids": list(compiling)}
    script.add("reset", tid, data, "enter", where=frames("main"))
    if end:
        script.add("reset", tid, {"error": error}, "exit")


class TestReset:
    @pytest.mark.parametrize("met", [{"calling": [A]}, {"compiling": [A]}])
    def test_a_reset_that_meets_a_call_is_found(self, script, met):
        warm(script)
        two_threads(script)
        reset(script, MAIN, **met)
        report = diagnose(script.finish())
        assert codes(report) == {"CR306"}
        assert find(report, "CR306").statements[0].certainty == "observed"

    def test_one_that_meets_none_is_not(self, script):
        warm(script)
        two_threads(script)
        reset(script, MAIN)
        assert diagnose(script.finish()).verdict == "clean"

    def test_torchs_assertion_is_its_doing(self, script):
        warm(script)
        two_threads(script)
        reset(script, A, error=f"AssertionError: {PENDING}")
        script.error(A, "thread", "AssertionError", PENDING)
        report = diagnose(script.finish())
        assert roots(report) == {"CR306"}
        assert codes(report) <= {"CR306", "CR901"}

    def test_a_crash_in_dynamo_outranks_the_signal(self, script):
        warm(script)
        two_threads(script)
        reset(script, MAIN, end=False)
        ended = {"signal": 11, "fatal_stacks": FATAL.format(IN_DYNAMO)}
        report = diagnose(script.finish(exit_code=None, end=False, **ended))
        assert codes(report) == {"CR306"}
        assert "SIGSEGV" in report.headline

    def test_a_crash_elsewhere_is_not_its_doing(self, script):
        warm(script)
        two_threads(script)
        reset(script, MAIN)
        ended = {"signal": 11, "fatal_stacks": FATAL.format("/home/user/project/native.py")}
        report = diagnose(script.finish(exit_code=None, end=False, **ended))
        assert codes(report) == {"CR902"}

    def test_the_cold_start_after_it_follows_from_it(self, script):
        warm(script)
        two_threads(script)
        reset(script, MAIN, calling=[A])
        script.begin(A, "0/1")
        script.wait(B, A, "enter")
        script.end(A, "0/1", digest="same")
        script.wait(B, A, "exit")
        script.compile(B, "0/2", digest="same")
        report = diagnose(script.finish())
        assert roots(report) == {"CR306"}


class TestFullgraphCounter:
    def test_with_another_caller_alive_it_is_the_counter(self, script):
        warm(script)
        two_threads(script)
        script.error(A, "thread", "RuntimeError", NO_FRAMES)
        assert roots(diagnose(script.finish())) == {"CR309"}

    def test_in_one_thread_it_means_what_it_says(self, script):
        warm(script)
        script.error(MAIN, "main", "RuntimeError", NO_FRAMES)
        assert "CR309" not in codes(diagnose(script.finish(exit_code=1)))


class TestConfigPatch:
    def compiles(self, script, dynamic, config, warmed="on"):
        script.call(MAIN, ctx=context())
        script.begin(MAIN, "0/0", ctx=context(config=PATCHED), dynamic=warmed)
        script.end(MAIN, "0/0")
        script.thread(A, "drafter-0")
        script.call(A, ctx=context())
        script.begin(A, "0/1", ctx=context(config=config), dynamic=dynamic)
        script.end(A, "0/1")
        return diagnose(script.finish())

    @pytest.mark.parametrize(
        ("dynamic", "config", "leaks"),
        [
            ("on", {}, True),
            ("on", PATCHED, False),
            ("off", PATCHED, True),
            ("off", {"automatic_dynamic_shapes": False}, False),
            ("automatic", PATCHED, True),
            ("automatic", {}, False),
        ],
    )
    def test_what_was_asked_for_decides(self, tmp_path, dynamic, config, leaks):
        report = self.compiles(Script(tmp_path, torch="2.11.0"), dynamic, config)
        assert ("CR305" in codes(report)) == leaks
        assert not [note for note in report.notes if "assume_static" in note.text]

    def test_from_2_12_on_the_config_is_per_thread(self, tmp_path):
        report = self.compiles(Script(tmp_path, torch="2.12.0"), "on", {})
        assert "CR305" not in codes(report)

    def test_a_program_that_never_uses_the_option_sets_the_config_itself(self, tmp_path):
        script = Script(tmp_path, torch="2.11.0")
        report = self.compiles(script, "automatic", PATCHED, warmed="automatic")
        assert "CR305" not in codes(report)


class TestCurrentDevice:
    @pytest.mark.parametrize(
        ("devices", "found"),
        [
            (["cuda:1"], True),
            (["cuda:1", "cpu"], True),
            (["cuda:0", "cpu"], False),
            (["cpu"], False),
            ([], False),
        ],
    )
    def test_the_tensors_devices_decide(self, script, devices, found):
        warm(script)
        script.thread(A, "launcher")
        script.error(A, "thread", "ValueError", POINTER)
        script.lines[-1]["data"] |= {"current_device": 0, "devices": devices}
        report = diagnose(script.finish())
        assert ("CR601" in roots(report)) == found
