"""Each status, from a result and its entry; and the exit code of all of them."""

import datetime as dt

import msgspec
import pytest

from harness.exits import ExitCode
from harness.gating.baseline import BaselineEntry, Key
from harness.gating.compare import Measured, exit_code, judge, missing

TODAY = dt.date(2026, 11, 30)
KEY = Key(scenario="trainer", torch="2.13", device="cpu")


def result(came, right="clean", **more):
    return Measured(key=KEY, right=right, result=came, **more)


def entry(known, **more):
    return BaselineEntry(scenario="trainer", torch="2.13", device="cpu", result=known, **more)


def bad(known, expires=dt.date(2027, 1, 1)):
    return entry(known, upstream="pytorch/pytorch#1", expires=expires)


@pytest.mark.parametrize(
    ("came", "known", "status"),
    [
        ("clean", None, "same"),
        ("clean", entry("clean"), "same"),
        ("CR101", None, "regressed"),
        ("CR101", entry("clean"), "regressed"),
        ("CR101", bad("CR101"), "same"),
        ("CR101+CR301", bad("CR101"), "regressed"),
        ("clean", bad("CR101"), "improved"),
        ("CR101", bad("CR101", expires=TODAY), "expired"),
        ("clean", bad("CR101", expires=TODAY), "improved"),
        ("CR301", bad("CR101", expires=TODAY), "regressed"),
        ("aborted", entry("clean"), "regressed"),
        ("hung", entry("clean"), "incomplete"),
        ("incomplete", entry("clean"), "incomplete"),
        ("the harness failed", entry("clean"), "incomplete"),
        ("nothing ran", None, "not run"),
        ("skipped", None, "not run"),
        ("skipped", entry("clean"), "not run"),
        ("skipped", entry("skipped"), "same"),
        ("not run", entry("clean"), "not run"),
    ],
)
def test_a_status(came, known, status) -> None:
    assert judge(result(came), known, TODAY).status == status


def test_a_limit_is_no_pass_even_where_the_baseline_has_it() -> None:
    assert judge(result("hung"), bad("hung"), TODAY).status == "incomplete"


def test_a_fault_of_the_machine_is_no_regression_and_no_pass() -> None:
    one = judge(result("CR904", fault="neighbour's memory on the GPU"), entry("clean"), TODAY)
    assert (one.status, one.because) == ("incomplete", "neighbour's memory on the GPU")


def test_since_is_when_it_was_last_as_it_should_be() -> None:
    known = entry("clean", recorded=dt.date(2026, 11, 1), commit="0123456789abcdef")
    assert judge(result("CR101"), known, TODAY).since == "2026-11-01 (0123456789ab)"


@pytest.mark.parametrize(
    ("ratio", "noise", "status"),
    [
        (2.1, 0.01, "same"),
        (1.9, 0.01, "same"),
        (2.5, 0.01, "regressed"),
        (1.5, 0.01, "improved"),
        (2.5, 0.40, "incomplete"),
    ],
)
def test_a_ratio(ratio, noise, status) -> None:
    known = entry("measured", ratio=2.0, tolerance=0.1)
    one = judge(result("measured", right="measured", ratio=ratio, noise=noise), known, TODAY)
    assert one.status == status


def judged(*came):
    return [judge(result(one), None, TODAY) for one in came]


@pytest.mark.parametrize(
    ("came", "code"),
    [
        (["clean"], ExitCode.CLEAN),
        (["clean", "CR101", "hung"], ExitCode.FOUND),
        (["clean", "hung"], ExitCode.INCOMPLETE),
        (["clean", "skipped"], ExitCode.INCOMPLETE),
        (["CR101", "the harness failed"], ExitCode.FAILED),
        (["skipped", "skipped"], ExitCode.NOTHING_RAN),
        (["not run"], ExitCode.NOTHING_RAN),
        ([], ExitCode.NOTHING_RAN),
    ],
)
def test_the_exit_code(came, code) -> None:
    assert exit_code(judged(*came)) is code


def test_all_skipped_is_not_green_even_where_the_baseline_has_it_so() -> None:
    assert exit_code([judge(result("skipped"), entry("skipped"), TODAY)]) is ExitCode.NOTHING_RAN


def test_what_the_baseline_has_and_no_result_came_of_is_not_run() -> None:
    gone = msgspec.structs.replace(entry("passed"), test="test_a.py::test_gone")
    other = msgspec.structs.replace(entry("clean"), scenario="removed")
    entries = {one.key: one for one in (entry("clean"), gone, other)}
    found = missing([result("clean")], {"trainer": "clean"}, entries, every=True)
    assert [one.status for one in found] == ["not run"] * 2
    assert "no result came" in found[0].because
    assert "remove its entry" in found[1].because
    assert len(missing([result("clean")], {"trainer": "clean"}, entries, every=False)) == 1
