"""Reports of real recordings, as a person sees them: a warm-up's mistake, a crash, a hang."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.diagnosis.build import diagnose
from harness.render import WRITERS
from harness.render.terminal import print_report
from harness.render.view import View

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(RECORDINGS)


@pytest.mark.parametrize("name", ["grad_mode", "fx_flag_in_compile+t211", "c08", "single_thread"])
def test_terminal(name, golden):
    file = io.StringIO()
    print_report(diagnose(Path(name)), Console(file=file, width=80), Path(name))
    golden(file.getvalue(), "txt")


def test_markdown_of_a_crash(golden):
    folder = Path("fx_flag_in_compile+t211")
    golden(WRITERS["md"](View.of(diagnose(folder), folder)), "md")


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in RECORDINGS.glob("*/events.jsonl")))
def test_every_statement_with_evidence_leads_to_a_line(folder):
    report = diagnose(Path(folder))
    view = View.of(report, Path(folder))
    cited = [
        (finding.pid, seq)
        for finding in report.findings
        for statement in finding.statements
        for seq in statement.evidence
    ]
    assert all(view.lines.cite(pid, (seq,))[0].file for pid, seq in cited)
    for render in WRITERS.values():
        assert render(view)
