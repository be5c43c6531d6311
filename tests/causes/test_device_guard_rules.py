"""CR320: a crash that is put down to the first compile's thread, and those that are not."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, code
from .rules import A, B, codes, find, roots

FIRST, SECOND = code(1, "first"), code(2, "second")
ENTERS = (
    '"/home/user/venv/lib/python3.11/site-packages/torch/_subclasses/fake_tensor.py", line 1446'
)
FATAL = """Fatal Python error: Segmentation fault

Current thread 0x00007fb569e546c0 (most recent call first):
  File {inner} in {function}
  File "/home/user/venv/lib/python3.11/site-packages/torch/_dynamo/utils.py", line 3710 in _get
  File "/home/user/project/train.py", line 9 in loop
"""


class Case:
    """A crash in the main thread's compile after a thread made the first one and ended.

    Each argument changes one of the things that have to be there.
    """

    def __init__(self, folder):
        self.folder = folder

    def codes(self, **changes):
        return codes(self.report(**changes))

    def report(
        self,
        *,
        torch="2.11.0+cu130",
        cuda="13.0",
        gpus=(),
        ends=True,
        main_first=False,
        internal_first=False,
        before=False,
        lost=False,
        inner=ENTERS,
        function="__enter__",
        exit_code=None,
        **ended,
    ):
        script = Script(self.folder, torch=torch)
        script.lines[0]["data"] |= {"cuda": cuda, "in_process": before}
        if gpus:
            script.add("gpu", MAIN, {"names": list(gpus)})
        if main_first:
            script.compile(MAIN, "5/0", code(5, "warmed"))
        if internal_first:
            script.compile(MAIN, "5/0", code(5, "wrapper", internal=True))
        if lost:
            script.seq += 3
        script.thread(A, "warmer")
        if before:  # the thread began the watch, and found an entry of torch's own
            there = {"code": code(5, "wrapper", internal=True), "ok": True, "before": True}
            script.add("dynamo_compile", A, there, "exit", compile_id="5/0")
        script.call(A, FIRST)
        script.compile(A, "0/0", FIRST)
        if ends:
            script.add("thread_end", A)
        script.call(MAIN, SECOND)
        script.begin(MAIN, "1/0", SECOND)
        signal = {} if exit_code else {"signal": 11, "signal_name": "SIGSEGV"}
        fatal = {"fatal_stacks": FATAL.format(inner=inner, function=function)}
        return diagnose(script.finish(exit_code, end=False, **{**signal, **fatal, **ended}))


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path / "run")


def test_the_first_compiles_thread_has_ended(case):
    report = case.report()
    assert codes(report) == {"CR320"}
    finding = find(report, "CR320")
    said = {statement.certainty: [] for statement in finding.statements}
    for statement in finding.statements:
        said[statement.certainty].append(statement.text)
    assert any(
        "`warmer` made the first compile of the process, `first` [0/0]" in text
        for text in said["observed"]
    )
    assert any("`MainThread` was in the compile of `second`" in text for text in said["observed"])
    assert any("is a build for CUDA (13.0), and saw no GPU" in text for text in said["inferred"])
    assert any("had been freed when `warmer` ended" in text for text in said["inferred"])
    assert [stack.title for stack in finding.stacks] == ["crashed", "compiled first"]


def test_a_shell_in_between_tells_of_the_signal(case):
    report = case.report(exit_code=139)
    assert codes(report) == {"CR320"}
    assert find(report, "CR320").statements[0].certainty == "inferred"


def test_the_older_torch_frees_it_too(case):
    assert case.codes(torch="2.10.0+cu128", cuda="12.8") == {"CR320"}


@pytest.mark.parametrize(
    "ended", [{"signal": 7, "signal_name": "SIGBUS"}, {"exit_code": 135}], ids="-".join
)
def test_a_bus_error_is_memory_that_is_not_there_too(case, ended):
    report = case.report(**ended)
    assert codes(report) == {"CR320"}
    assert find(report, "CR320").statements[0].text.startswith("SIGBUS ended")


@pytest.mark.parametrize(
    "changes",
    [
        {"ends": False},
        {"main_first": True},
        {"internal_first": True},
        {"cuda": "", "torch": "2.11.0+cpu"},
        {"cuda": "hip 7.1", "torch": "2.11.0+rocm7.1"},
        {"signal": 6, "signal_name": "SIGABRT"},
        {"exit_code": 134},
        {"torch": "2.12.0+cu130"},
        {"torch": "2.9.1+cu128"},
        {"torch": ""},
        {"gpus": ("NVIDIA H200",)},
        {"inner": '"/home/user/project/native.py", line 4'},
        {"inner": '"/home/user/project/fake_tensor.py", line 1446'},
        {"function": "__torch_dispatch__"},
        {"fatal_stacks": ""},
        {"lost": True},
        {"before": True},
    ],
    ids="-".join,
)
def test_without_one_of_its_signs_it_is_a_crash_of_unknown_cause(case, changes):
    assert case.codes(**changes) == {"CR902"}


def test_an_end_from_outside_is_none(case):
    assert case.codes(signal=15, signal_name="SIGTERM", killed_from_outside=True) == {"CR906"}


def test_it_follows_from_what_made_the_thread_compile(tmp_path):
    script = Script(tmp_path / "cold", torch="2.11.0+cu130")
    script.lines[0]["data"]["cuda"] = "13.0"
    script.thread(A, "drafter-0")
    script.thread(B, "drafter-1")
    script.call(A, FIRST)
    script.call(B, FIRST)
    script.begin(A, "0/0", FIRST, entries=0)
    script.wait(B, A, "enter")
    script.end(A, "0/0", FIRST)
    script.add("thread_end", A)
    script.wait(B, A, "exit")
    script.begin(B, "0/1", FIRST, entries=1)
    fatal = FATAL.format(inner=ENTERS, function="__enter__")
    folder = script.finish(None, end=False, signal=11, signal_name="SIGSEGV", fatal_stacks=fatal)
    report = diagnose(folder)
    assert roots(report) == {"CR208"}
    assert "CR208" in find(report, "CR320").follows_from


def test_it_is_told_from_a_reset_while_a_thread_calls(tmp_path):
    """The crash is where the guard is called, which no reset frees."""
    script = Script(tmp_path / "reset", torch="2.11.0+cu130")
    script.lines[0]["data"]["cuda"] = "13.0"
    script.thread(A, "warmer")
    script.call(A, FIRST)
    script.compile(A, "0/0", FIRST)
    script.add("thread_end", A)
    script.thread(B, "caller")
    script.call(B, FIRST)
    script.add("reset", MAIN, {"calling_tids": [], "compiling_tids": []}, "enter")
    script.add("reset", MAIN, {"error": ""}, "exit")
    script.begin(B, "1/0", SECOND)
    fatal = FATAL.format(inner=ENTERS, function="__enter__")
    folder = script.finish(None, end=False, signal=11, signal_name="SIGSEGV", fatal_stacks=fatal)
    assert "CR320" in codes(diagnose(folder))
