"""Programs that know nothing of the harness, each with the verdict that it must get.

``tests/cases/expected.toml`` names, per program, the roots that must be found and the causes that
are allowed beside them; anything else is a false alarm.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.causes import CAUSES

CASES = Path(__file__).parent / "cases"
EXPECTED = msgspec.toml.decode((CASES / "expected.toml").read_bytes())
# In each fresh cache torch tries what the compiler can do: four seconds of C++, no case's subject.
ENVIRONMENT = {**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "1"}
BUILT = {cause.EXPLANATION.code for cause in CAUSES}


def watch(case: str, out: Path) -> dict:
    # A program that hangs is told at the time limit.
    limit = "30" if "hang" in case else "120"
    command = [sys.executable, "-m", "harness.watch", "--out", str(out), "--timeout", limit]
    run = subprocess.run(
        [*command, "--", str(CASES / case)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr[-3000:]
    (saved,) = out.glob("*/report.json")
    report: dict = json.loads(saved.read_text())
    assert report["exit_code"] == run.returncode
    return report


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_case_gets_its_verdict_and_no_other_cause(case: str, tmp_path: Path) -> None:
    expected = EXPECTED[case]
    if missing := set(expected["causes"]) - BUILT:
        pytest.skip(f"no rule for {', '.join(sorted(missing))} yet")
    report = watch(case, tmp_path)
    found = {finding["code"] for finding in report["findings"]}
    roots = {finding["code"] for finding in report["findings"] if finding["root"]}
    assert report["verdict"] == expected["verdict"], report["headline"]
    assert roots >= set(expected["causes"]), report["headline"]
    assert found <= set(expected["causes"]) | set(expected["also_ok"]), report["headline"]


def test_every_program_has_an_expectation() -> None:
    assert {path.name for path in CASES.glob("*.py")} == set(EXPECTED)
