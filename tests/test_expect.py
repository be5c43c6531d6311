"""Exit codes: the whole table."""

import pytest

from dflash_min.errors import UsageError
from harness.diagnosis.report import Finding, Remedy, Report
from harness.events.ended import Ended
from harness.expect import check_expectations, decide_exit
from harness.flow import passed_through


def report(verdict: str, code: int, *codes: str) -> Report:
    """A report whose first finding is the root, or whose codes marked with * are."""
    findings = tuple(
        Finding(
            code=name.strip("*"),
            title="",
            root=name.endswith("*"),
            pid=1,
            statements=(),
            remedy=Remedy(""),
        )
        for name in codes
    )
    return Report(verdict=verdict, exit_code=code, headline="", findings=findings)  # type: ignore[arg-type]


CLEAN = report("clean", 0)
CHAIN = report("found", 1, "CR101*", "CR303", "CR301")
TWO = report("found", 1, "CR101*", "CR105*")

TABLE = [
    # report, --expect, --expect-only, exit code
    (CLEAN, "", "", 0),
    (CLEAN, "clean", "", 0),
    (CLEAN, "CR101", "", 1),
    (CLEAN, "", "clean", 0),
    (CLEAN, "", "CR101", 1),
    (CHAIN, "", "", 1),
    (CHAIN, "clean", "", 1),
    (CHAIN, "CR101", "", 0),
    (CHAIN, "CR303", "", 1),
    (CHAIN, "CR101 CR303", "", 1),
    (CHAIN, "", "CR101", 1),
    (CHAIN, "", "CR301 CR101 CR303", 0),
    (TWO, "CR101", "", 1),
    (TWO, "CR105 CR101", "", 0),
    (TWO, "CR101 CR105 CR999", "", 1),
    (TWO, "", "CR101 CR105", 0),
]
UNDECIDED = [(report("failed", 3), 3), (report("incomplete", 4), 4), (report("nothing ran", 5), 5)]
TABLE += [
    (undecided, expect, only, code)
    for undecided, code in UNDECIDED
    for expect, only in (("", ""), ("clean", ""), ("CR101", ""), ("", "clean"), ("", "CR101"))
]


@pytest.mark.parametrize(("found", "expect", "only", "code"), TABLE)
def test_the_table(found, expect, only, code) -> None:
    assert decide_exit(found, expect.split(), only.split()) == code


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Ended(exit_code=0), 0),
        (Ended(exit_code=7), 7),
        (Ended(exit_code=None, signal=11), 139),
        (Ended(exit_code=None, signal=15, deadline_hit=True), 143),
    ],
)
def test_the_programs_own_code(ended, code) -> None:
    assert passed_through(ended) == code


@pytest.mark.parametrize(
    ("expect", "only", "message"),
    [
        ("clean CR101", "", "--expect: clean stands alone"),
        ("", "CR101 clean", "--expect-only: clean stands alone"),
        ("CR101", "CR101", "exclude each other"),
        ("cr101", "", "cr101 is neither clean nor a code"),
        ("", "CR1010", "CR1010 is neither clean nor a code"),
        ("CR999", "", "--expect: there is no cause CR999"),
    ],
)
def test_expectations_that_make_no_sense(expect, only, message) -> None:
    with pytest.raises(UsageError, match=message):
        check_expectations(expect.split(), only.split(), ["CR101"])


def test_expectations_that_do() -> None:
    for expect, only in (("", ""), ("clean", ""), ("CR101 CR303", ""), ("", "CR303")):
        check_expectations(expect.split(), only.split(), ["CR101", "CR303"])
