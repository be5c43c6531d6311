"""What people and GitHub read of a gate."""

import datetime as dt

import msgspec
import pytest

from harness.events.values import Frame
from harness.exits import ExitCode
from harness.gating.baseline import BaselineEntry, Key
from harness.gating.compare import Measured, judge
from harness.gating.junit import junit
from harness.gating.outcome import Gate, dumps, headline_of, loads, verdict_of
from harness.gating.summary import (
    MOST_BYTES,
    add_step_summary,
    annotations,
    checkout,
    markdown,
    terminal,
    within,
)

TODAY = dt.date(2026, 11, 30)


def one(name, result="clean", **more):
    key = Key(scenario=name, torch="2.13", device="cpu")
    measured = Measured(
        key=key,
        right="clean",
        result=result,
        reproduce=f"python -m harness.run --seed {name}",
        folder=f"runs/{name}/1",
        **more,
    )
    entry = BaselineEntry(
        scenario=name,
        torch="2.13",
        device="cpu",
        result="clean",
        recorded=dt.date(2026, 11, 1),
        commit="0123456789abcdef",
    )
    return judge(measured, entry, TODAY)


def gate_of(*judged):
    code = ExitCode.FOUND
    return Gate(
        verdict=verdict_of(code),
        exit_code=code,
        headline=headline_of(code, judged, ()),
        torch="2.13.0+cpu",
        python="3.11",
        device="cpu",
        gpus=0,
        harness="1",
        judged=judged,
    )


FRAMES = (
    Frame("/usr/lib/python3/threading.py", 5, "run", user=True),
    Frame("/checkout/a,b/train:er.py", 12, "step", user=True),
)
HOSTILE = "a | `b`\x00 <b>\n::error::no\r 100%"


@pytest.fixture
def gate(tmp_path):
    good = [one(f"good-{n}") for n in range(30)]
    return gate_of(*good, one("trainer", "CR101", said=f"warmed off {HOSTILE}", frames=FRAMES))


def test_the_first_screen_says_what_broke_since_when_and_how_to_see_it(gate) -> None:
    first = "\n".join(markdown(gate).splitlines()[:20])
    assert "1 regressed" in first
    assert "regressed: trainer" in first
    assert "it was clean and is CR101" in first
    assert "at 2026-11-01 (0123456789ab)" in first
    assert "`python -m harness.run --seed trainer`" in first
    assert first.index("regressed: trainer") < first.index("good-1")
    screen = terminal(gate, "out").splitlines()[:10]
    assert any("reproduce: python -m harness.run --seed trainer" in line for line in screen)


def test_the_step_summary_stays_within_what_github_takes(gate, tmp_path) -> None:
    path = tmp_path / "summary"
    path.write_text("x" * (MOST_BYTES - 2000))
    assert add_step_summary(gate, {"GITHUB_STEP_SUMMARY": str(path)}) == ""
    assert MOST_BYTES - 1900 < path.stat().st_size <= MOST_BYTES
    assert path.read_text().endswith("The rest did not fit; it is in gate.json.\n")
    assert within("short", 100) == b"short"
    assert within("long" * 100, 5) == b""


def test_no_step_summary_is_written_unless_asked_for(gate, tmp_path) -> None:
    assert add_step_summary(gate, {}) == ""
    assert "cannot be written" in add_step_summary(
        gate, {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "folder")}
    )


def test_the_programs_line_is_annotated(gate, tmp_path) -> None:
    root = checkout({"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "/checkout"})
    (line,) = annotations(gate, root)
    assert line.startswith(
        "::error file=a%2Cb/train%3Aer.py,line=12,title=regressed%3A trainer::it was clean"
    )
    assert "\n" not in line
    assert "%0A::error::no" in line
    assert "100%25" in line
    assert checkout({}) is None


def test_junit_and_json_hold_any_text(gate) -> None:
    import junitparser

    parsed = junitparser.JUnitXml.fromstring(junit(gate))
    assert (parsed.tests, parsed.failures) == (31, 1)
    assert loads(dumps(gate).encode()) == gate
    with pytest.raises(msgspec.ValidationError):
        loads(b"{}")
