"""CR105, CR106, CR203, CR205, CR206, CR209: what guards say, and whose fault it is."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, code, context
from .rules import A, codes, find, roots, two_threads, warm

REASONS = {
    "GLOBAL_STATE changed: num_threads ": "CR105",
    "GLOBAL_STATE changed: allow_tf32 ": "CR106",
    "GLOBAL_STATE changed: default_dtype ": "CR106",
    "tensor 'x' requires_grad mismatch. expected requires_grad=0": "CR203",
    "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU), actual": "CR203",
    "tensor 'x' dtype mismatch. expected Float, actual Double": "CR205",
    "tensor 'x' stride mismatch at index 0. expected 4, actual 1": "CR205",
    "G['settings'].scale == 2.0": "CR206",
    "len(x) == 1": "CR206",
    "_has_dynamo_dim_marking is present on runtime tensor but was absent": "CR209",
    "hasattr(x, '_dynamo_dynamic_indices') == False": "CR209",
}


def missed(script, reason, **rest):
    two_threads(script)
    script.miss(A, **rest)
    script.compile(A, "0/1", reasons=[f"0/0: {reason}"], **rest)
    return diagnose(script.finish())


@pytest.mark.parametrize("reason", REASONS)
def test_the_guard_decides(script, reason):
    warm(script)
    report = missed(script, reason)
    assert codes(report) == {REASONS[reason]}


@pytest.mark.parametrize("reason", [r for r, c in REASONS.items() if c.startswith("CR2")])
def test_with_nobody_else_there_it_is_a_note(script, reason):
    warm(script)
    script.miss(MAIN)
    script.compile(MAIN, "0/1", reasons=[f"0/0: {reason}"])
    report = diagnose(script.finish())
    assert report.verdict == "clean"
    assert report.counts.compiles == 2


def test_the_threads_inference_mode_decides_between_them(script):
    """A requires_grad that differs is inference mode's doing where that differs too."""
    script.compile(MAIN, "0/0", ctx=context(grad=False, inference=True))
    reason = "tensor 'x' requires_grad mismatch. expected requires_grad=0"
    assert roots(missed(script, reason, ctx=context(grad=False))) == {"CR102"}


def test_a_flag_is_told_with_both_values(script):
    script.compile(MAIN, "0/0", ctx=context(numeric_flags={"allow_tf32": False}))
    script.call(MAIN)
    ctx = context(numeric_flags={"allow_tf32": True})
    report = missed(script, "GLOBAL_STATE changed: allow_tf32 ", ctx=ctx)
    assert "warmed with allow_tf32 off and is called with allow_tf32 on" in report.headline


def test_num_threads_are_told_with_both_values(script):
    script.compile(MAIN, "0/0", ctx=context(num_threads=8))
    report = missed(script, "GLOBAL_STATE changed: num_threads ", ctx=context(num_threads=1))
    assert "with 8 intra-op threads and is called with 1 intra-op thread " in report.headline


@pytest.mark.parametrize(("owner", "expected"), [(2, set()), (1, {"CR206"})])
def test_the_first_call_of_another_object_is_its_own_warm_up(tmp_path, owner, expected):
    """All objects of a class share a method's code and cache."""
    script, forward = Script(tmp_path), code(3, "Model.forward")
    script.call(MAIN, of=forward)
    script.begin(MAIN, "0/0", of=forward, owner=1)
    script.end(MAIN, "0/0", of=forward)
    script.thread(A, "second")
    script.call(A, of=forward)
    script.miss(A, of=forward)
    script.begin(A, "0/1", of=forward, owner=owner)
    script.end(A, "0/1", of=forward, reasons=["0/0: self.training == True"])
    script.call(MAIN, of=forward)
    report = diagnose(script.finish())
    assert codes(report) == expected
    assert {note.code for note in report.notes} == ({"CR206"} - expected)


def test_who_changed_a_value_is_said_to_be_unknown(script):
    warm(script)
    finding = find(missed(script, "G['settings'].scale == 2.0  # source"), "CR206")
    assert finding.statements[-1].certainty == "unknown"
    assert "`0/0: G['settings'].scale == 2.0`" in finding.statements[0].text
