"""The incident's defect put back into the trainer's warm-up turns the gate red, and is named."""

import shutil
from pathlib import Path

import dflash_min

SUITE = """
schema = 1
baseline = "baseline.toml"

[specs.clean_trainer]
run = ["--threads", "3", "--warmup", "grad", "--steps", "4"]
expect = ["clean"]
"""
BASELINE = """
schema = 1

[[entry]]
scenario = "clean_trainer"
torch = "{minor}"
device = "cpu"
result = "clean"
recorded = 2026-11-30
commit = "0123456789abcdef"
"""


def with_the_defect(folder: Path) -> None:
    """A copy of the trainer that warms up without gradients whatever it is told."""
    shutil.copytree(Path(dflash_min.__file__).parent, folder)
    warmup = folder / "warmup.py"
    text = warmup.read_text()
    for right, wrong in (
        ("return torch.enable_grad()", "return torch.no_grad()"),
        ('if mode == "grad":', "if sums.weighted_sum.requires_grad:"),
    ):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    warmup.write_text(text)


def test_a_defect_in_the_warm_up_turns_the_gate_red(
    tmp_path, minor, run_gate, monkeypatch, capsys
) -> None:
    with_the_defect(tmp_path / "dflash_min")
    (tmp_path / "gate.toml").write_text(SUITE)
    (tmp_path / "baseline.toml").write_text(BASELINE.format(minor=minor))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    ended = run_gate(tmp_path)
    assert (ended.code, ended.statuses) == (1, {"clean_trainer": "regressed"})
    measured = ended.about("clean_trainer")["measured"]
    assert "CR101" in measured["result"]
    assert "it was warmed with gradients off and is called with them on" in measured["said"]
    assert (ended.out / measured["folder"] / "report.html").exists()
    (case,) = (case for suite in ended.junit for case in suite)
    assert "warmed with gradients off" in case.result[0].text
    first = (tmp_path / "summary.md").read_text().splitlines()[:12]
    for said in ("regressed: clean", "warmed with gradients off", "2026-11-30 (0123456789ab)"):
        assert any(said in line for line in first), first
    assert any("python -m harness.run --threads 3 --warmup grad" in line for line in first)
    error = next(line for line in capsys.readouterr().out.splitlines() if "::error" in line)
    assert error.startswith("::error file=dflash_min/")
    assert "warmed with gradients off" in error
