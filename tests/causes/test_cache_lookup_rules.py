"""CR319: a call that compiled what an entry was there for before it began."""

import pytest

from harness.diagnosis.build import diagnose

from .build import MAIN, Script
from .rules import SIZE, A, B, codes, find, roots, two_threads

PASSED = "0/0: Unexpected recompilation: runtime guards failed even though they passed"
BACKEND = "0/0: BACKEND_MATCH failure: torch.compile detected different backend callables."
OTHER = "0/1: tensor 'query' size mismatch at index 2. expected 640, actual 512"


def warm(script):
    script.call(MAIN)
    script.compile(MAIN, "0/0", digest="short")
    script.compile(MAIN, "0/1", reasons=[SIZE], digest="long")


def missed(script, tid, number, reasons=(PASSED, OTHER), digest="short", *, entries=2):
    script.miss(tid)
    script.begin(tid, number, entries=entries)
    script.end(tid, number, reasons=reasons, digest=digest)


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


def test_what_torch_2_11_says_may_be_a_backend(tmp_path):
    script = Script(tmp_path / "run", torch="2.11.0")
    warm(script)
    two_threads(script)
    missed(script, A, "0/2", (BACKEND, OTHER))
    script.call(B)
    report = diagnose(script.finish())
    assert "CR319" not in codes(report)
    assert "CR319" in {note.code for note in report.notes}
