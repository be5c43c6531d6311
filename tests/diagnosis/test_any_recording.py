"""Whatever a recording looks like, there is a report, and it is the same each time."""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import dumps, loads

from ..causes.build import MAIN, Script, write

RECORDINGS = Path(__file__).parent.parent / "recordings"
NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/events.jsonl"))
RAW = {name: (RECORDINGS / name / "events.jsonl").read_bytes() for name in NAMES}
ENDED = {
    name: file.read_bytes() if (file := RECORDINGS / name / "ended.json").exists() else None
    for name in NAMES
}


def diagnose_raw(events, ended):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "events.jsonl").write_bytes(events)
        if ended is not None:
            Path(folder, "ended.json").write_bytes(ended)
        report = diagnose(folder)
    assert loads(dumps(report)) == report
    return report


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(NAMES), part=st.floats(0, 1), ended=st.booleans())
def test_a_recording_cut_anywhere_gives_a_report(name, part, ended):
    cut = int(len(RAW[name]) * part)
    report = diagnose_raw(RAW[name][:cut], ENDED[name] if ended else None)
    assert report.headline
    for finding in report.findings:
        assert finding.root == (not finding.follows_from)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 2**32),
    dropped=st.floats(0, 0.5),
    swapped=st.booleans(),
)
def test_lost_and_reordered_lines_give_a_report(name, seed, dropped, swapped):
    generator = random.Random(seed)
    lines = [line for line in RAW[name].splitlines(keepends=True) if generator.random() >= dropped]
    if swapped:
        generator.shuffle(lines)
    assert diagnose_raw(b"".join(lines), ENDED[name]).headline


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), at=st.floats(0, 1), junk=st.binary(max_size=40))
def test_junk_anywhere_gives_a_report(name, at, junk):
    position = int(len(RAW[name]) * at)
    raw = RAW[name][:position] + junk + RAW[name][position:]
    assert diagnose_raw(raw, ENDED[name]).headline


@pytest.mark.parametrize("name", NAMES)
def test_what_a_newer_recorder_adds_changes_nothing(name, tmp_path):
    lines = []
    files = [RAW[name], *(f.read_bytes() for f in (RECORDINGS / name).glob("steady-*.jsonl"))]
    last = max(json.loads(line)["seq"] for file in files for line in file.splitlines())
    for number, line in enumerate(RAW[name].splitlines()):
        event = json.loads(line)
        event["colour"] = "red"
        event.get("data", {})["planet"] = {"deep": [1]}
        lines.append(event)
        if number % 5 == 4:
            last += 1
            lines.append({**event, "point": "quantum_leap", "seq": last})
    ended = ENDED[name]
    write(tmp_path, lines, None if ended is None else json.loads(ended))
    for pattern in ("steady-*.jsonl", "events-*.jsonl"):  # and other processes' recordings
        for file in (RECORDINGS / name).glob(pattern):
            shutil.copy(file, tmp_path)
    plain, newer = diagnose(RECORDINGS / name), diagnose(tmp_path)
    assert newer.findings == plain.findings
    assert newer.counts == plain.counts
    assert newer.verdict == plain.verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_same_recording_gives_the_same_report(name):
    assert dumps(diagnose(RECORDINGS / name)) == dumps(diagnose(RECORDINGS / name))


def test_report_json_has_the_promised_top_level():
    keys = set(json.loads(dumps(diagnose(RECORDINGS / "grad_mode"))))
    assert keys >= {
        "schema",
        "verdict",
        "exit_code",
        "headline",
        "findings",
        "counts",
        "coverage",
        "caches",
        "errors",
        "environment",
        "not_watched",
        "ended",
        "replay",
        "notes",
        "threads",
    }


def test_control_bytes_and_undecodable_names_survive_json(tmp_path):
    script = Script(tmp_path)
    script.names[MAIN] = "\x1b[31mred\x00"
    script.compile(MAIN, "0/0")
    script.error(MAIN, "main", "ValueError", "file \udcff\x07 is gone")
    report = diagnose(script.finish(1))
    assert loads(dumps(report)) == report
    assert report.errors[0].message == "file \\udcff\x07 is gone"


def test_reading_needs_no_torch():
    code = (
        "import sys, harness.diagnosis.build as b; b.diagnose(sys.argv[1]);"
        "sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, RECORDINGS / "c01"], check=False)
    assert run.returncode == 0


def test_a_report_is_no_report_of_another_schema():
    with pytest.raises(msgspec.ValidationError):
        loads(b'{"verdict": "maybe"}')


class TestSeveralProcesses:
    def test_each_is_diagnosed_by_itself(self, tmp_path):
        """Two ranks: one is healthy; the launcher's exit code tells nothing more."""
        rank = Script(tmp_path, pid=5000)
        rank.compile(5000, "0/0")
        rank.error(5000, "main", "ValueError", "bad shard")
        rank.finish(1)
        (tmp_path / "events.jsonl").rename(tmp_path / "events-5000.jsonl")
        launcher = Script(tmp_path)
        report = diagnose(launcher.finish(1))
        assert [(f.code, f.pid) for f in report.findings] == [("CR905", 5000)]
        assert report.environment.processes == (MAIN, 5000)
        assert "bad shard" in report.headline

    def test_threads_of_two_processes_with_one_id_are_two(self, tmp_path):
        rank = Script(tmp_path, pid=5000)
        rank.thread(7, "trainer", by=5000)
        rank.call(7)
        rank.finish()
        (tmp_path / "events.jsonl").rename(tmp_path / "events-5000.jsonl")
        main = Script(tmp_path)
        main.thread(7, "trainer")
        main.call(7)
        main.compile(7, "0/0")
        assert diagnose(main.finish()).counts.threads_with_compiled_calls == 2
