"""Programs that know nothing of the harness, each with the verdict that it must get.

``tests/cases/expected.toml`` names, per program, the roots that must be found and the causes that
are allowed beside them; anything else is a false alarm.
"""

import json
from pathlib import Path

import msgspec
import pytest

from harness import watch
from harness.causes import CAUSES

CASES = Path(__file__).parent / "cases"
EXPECTED = msgspec.toml.decode((CASES / "expected.toml").read_bytes())
BUILT = {cause.EXPLANATION.code for cause in CAUSES}


def watched(case: str, out: Path) -> dict:
    # A program that hangs is told at the time limit.
    limit = "30" if "hang" in case else "120"
    code = watch.main(["--out", str(out), "--timeout", limit, "--", str(CASES / case)])
    assert code in (0, 1)
    (saved,) = out.glob("*/report.json")
    report: dict = json.loads(saved.read_text())
    assert report["exit_code"] == code
    return report


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_case_gets_its_verdict_and_no_other_cause(case: str, tmp_path: Path, monkeypatch) -> None:
    # In each fresh cache torch tries what the compiler can do: seconds of C++, no case's subject.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    expected = EXPECTED[case]
    if missing := set(expected["causes"]) - BUILT:
        pytest.skip(f"no rule for {', '.join(sorted(missing))} yet")
    report = watched(case, tmp_path)
    found = {finding["code"] for finding in report["findings"]}
    roots = {finding["code"] for finding in report["findings"] if finding["root"]}
    assert report["verdict"] == expected["verdict"], report["headline"]
    assert roots >= set(expected["causes"]), report["headline"]
    assert found <= set(expected["causes"]) | set(expected["also_ok"]), report["headline"]


def test_every_program_has_an_expectation() -> None:
    assert {path.name for path in CASES.glob("*.py")} == set(EXPECTED)
