"""CR319: a call that compiled what an entry was there for before it began."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script, code, frames
from .rules import SIZE, A, B, codes, find, roots, two_threads

PASSED = "0/0: Unexpected recompilation: runtime guards failed even though they passed"
BACKEND = "0/0: BACKEND_MATCH failure: torch.compile detected different backend callables."
OTHER = "0/1: tensor 'query' size mismatch at index 2. expected 640, actual 512"


def warm(script):
    script.call(MAIN)
    script.compile(MAIN, "0/0", digest="short")
    script.compile(MAIN, "0/1", reasons=[SIZE], digest="long")


def missed(script, tid, number, reasons=(PASSED, OTHER), digest="short", *, entries=2, **data):
    script.miss(tid)
    script.begin(tid, number, entries=entries)
    script.end(tid, number, reasons=reasons, digest=digest, **data)


def test_an_entry_that_was_there_before_the_call_and_fits(script):
    warm(script)
    two_threads(script)
    missed(script, A, "0/2")
    script.call(B)
    report = diagnose(script.finish())
    assert codes(report) == {"CR319"}
    finding = find(report, "CR319")
    assert [s.certainty for s in finding.statements] == ["observed", "observed", "inferred"]
    assert "although [0/0], made before its call began, fits" in finding.statements[0].text
    assert "drafter-1" in finding.statements[-1].text


def test_who_waited_for_a_copy_meanwhile_follows(script):
    warm(script)
    two_threads(script)
    script.miss(A)
    script.begin(A, "0/2", entries=2)
    script.miss(B)
    script.wait(B, A, "enter")
    script.end(A, "0/2", reasons=[PASSED, OTHER], digest="short")
    script.wait(B, A, "exit")
    script.begin(B, "0/3", entries=3)
    script.end(B, "0/3", reasons=[PASSED.replace("0/0", "0/2"), PASSED, OTHER], digest="short")
    report = diagnose(script.finish())
    assert (roots(report), codes(report)) == ({"CR319"}, {"CR319", "CR303"})
    assert find(report, "CR303").follows_from == ("CR319",)


def test_an_entry_finished_after_the_call_missed_is_a_stampedes(script):
    two_threads(script)
    script.begin(A, "0/0", entries=0)
    script.wait(B, A, "enter")
    script.end(A, "0/0", digest="short")
    script.wait(B, A, "exit")
    script.begin(B, "0/1", entries=2)
    script.end(B, "0/1", reasons=[PASSED], digest="short")
    assert "CR319" not in codes(diagnose(script.finish()))


def test_a_miss_that_may_have_begun_before_the_entry_was_there_is_none(script):
    """The miss is seen after the entry, but nothing of its thread in between."""
    two_threads(script)
    script.compile(A, "0/0", digest="short")
    missed(script, B, "0/1")
    assert "CR319" not in codes(diagnose(script.finish()))


@pytest.mark.parametrize(
    ("reasons", "entries"), [((PASSED,), 1), ((SIZE, OTHER), 2), ((BACKEND, OTHER), 2)]
)
def test_neither_one_entry_nor_another_reason(script, reasons, entries):
    warm(script)
    two_threads(script)
    missed(script, A, "0/2", reasons, entries=entries)
    script.call(B)
    assert "CR319" not in codes(diagnose(script.finish()))


def test_with_no_other_thread_there_is_nobody_to_overtake(script):
    warm(script)
    script.thread(A, "drafter-0")
    script.call(A)
    missed(script, A, "0/2")
    report = diagnose(script.finish())
    assert "CR319" not in codes(report)


def test_entries_before_a_reset_are_no_more(script):
    warm(script)
    two_threads(script)
    for edge in ("enter", "exit"):
        script.add("reset", MAIN, {"calling_tids": [], "compiling_tids": []}, edge)
    missed(script, A, "0/2")
    script.call(B)
    assert "CR319" not in codes(diagnose(script.finish()))


def on_2_11(tmp_path, **data):
    script = Script(tmp_path / "run", torch="2.11.0")
    warm(script)
    two_threads(script)
    missed(script, A, "0/2", (BACKEND, OTHER), **data)
    script.call(B)
    return diagnose(script.finish())


def test_what_torch_2_11_says_of_a_backend_is_checked(tmp_path):
    report = on_2_11(tmp_path, other_backends=[])
    assert codes(report) == {"CR319"}
    assert report.notes == ()


def test_another_backend_compiles_of_its_own(tmp_path):
    report = on_2_11(tmp_path, other_backends=["0/0", "0/1"])
    assert "CR319" not in codes(report)
    assert "CR319" not in {note.code for note in report.notes}


def test_what_torch_2_11_says_of_backends_that_were_not_recorded_may_be_so(tmp_path):
    report = on_2_11(tmp_path)
    assert "CR319" not in codes(report)
    assert "CR319" in {note.code for note in report.notes}


def test_copies_that_use_up_the_limit_lead_to_eager_calls(script):
    warm(script)
    two_threads(script)
    script.call(B)
    for number in range(2, 8):
        missed(script, A, f"0/{number}", entries=number)
        script.call(B)
    script.miss(B)
    script.begin(B, "0/8", entries=8)
    script.end(B, "0/8", ok=False, error="recompile_limit reached", limit_hit=True)
    data = {"code": code(), "route": "run_only", "by_tid": B, "began_ns": script.t}
    script.add("eager", A, data, where=frames("loop"))
    report = diagnose(script.finish())
    assert [(f.code, f.follows_from) for f in report.findings] == [
        ("CR319", ()),
        ("CR403", ("CR319",)),
    ]
    assert "6 by `drafter-0`" in find(report, "CR403").statements[0].text


def test_a_compile_for_another_shape_beside_a_copy_is_a_new_shape(script):
    """What one call missed of a race does not hide what another lacked."""
    warm(script)
    two_threads(script)
    missed(script, A, "0/2")
    script.miss(B)
    script.begin(B, "0/3", entries=3)
    script.end(B, "0/3", reasons=[SIZE, OTHER, SIZE.replace("0/0", "0/2")], digest="longer")
    assert roots(diagnose(script.finish())) == {"CR319", "CR201"}
