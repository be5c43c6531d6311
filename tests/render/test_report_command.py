"""``python -m harness.report``: the report again, from what is on the disk."""

import shutil
from pathlib import Path

import pytest

from harness import report as command
from harness.diagnosis.report import loads
from harness.events.ended import Ended, write_ended
from harness.events.run import Run, write_run
from harness.render import WRITERS

RECORDING = Path(__file__).parents[1] / "recordings" / "grad_mode"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(RECORDING, tmp_path / "run"))


def read(folder):
    return loads((folder / "report.json").read_bytes())


def test_prints_and_writes_the_files(folder, capsys):
    assert command.main([str(folder)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("FOUND")
    assert f"Full report: {folder / 'report.html'}" in output
    report = read(folder)
    assert (report.verdict, report.exit_code) == ("found", 1)
    assert {"report.md", "report.html"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", WRITERS)
def test_prints_a_file_of_each_kind(kind, folder, capsys):
    assert command.main([str(folder), "--format", kind]) == 1
    assert capsys.readouterr().out == (folder / f"report.{kind}").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["terminal", *WRITERS])
def test_writes_to_a_file_instead(kind, folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert command.main([str(folder), "--format", kind, "--out", str(out)]) == 1
    assert capsys.readouterr().out == ""
    text = out.read_text(encoding="utf-8")
    assert "CR101" in text
    assert "\x1b" not in text


def test_works_when_the_parent_has_died(folder, capsys):
    (folder / "ended.json").unlink()
    events = folder / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-40])
    assert command.main([str(folder)]) == 1
    assert "How the process ended is not known" in capsys.readouterr().out
    report = read(folder)
    assert report.ended is None
    assert report.findings[0].code == "CR101"
    assert report.replay.startswith("python -m harness.watch -- ")


def test_what_was_asked_for_is_read_from_the_folder(folder):
    write_run(folder, Run(replay="python -m harness.run --threads 9", expected_threads=9))
    command.main([str(folder), "--format", "json"])
    report = read(folder)
    assert report.replay == "python -m harness.run --threads 9"
    assert report.expected_threads == 9
    assert any("9" in item.reason for item in report.not_watched)


def test_a_damaged_run_json_is_as_none(folder):
    (folder / "run.json").write_text('{"replay": ', encoding="utf-8")
    assert command.main([str(folder)]) == 1
    assert read(folder).replay.startswith("python -m harness.watch -- ")


@pytest.mark.parametrize(
    ("events", "ended", "said"),
    [
        (
            None,
            Ended(exit_code=0, child_failure="Traceback ...\nTypeError: no\n"),
            "The program was not watched: TypeError: no",
        ),
        (None, Ended(exit_code=0), "The program was not watched: its interpreter did not load"),
        ("not an event\n", Ended(exit_code=0), "The recording cannot be read: it has no header."),
        ("", None, "The recording is empty."),
        ("", Ended(exit_code=0), "The program was not watched: its recording is empty."),
        ('{"point": "hea', None, "The recording cannot be read: it has no header."),
        (
            None,
            Ended(exit_code=None, signal=9, signal_name="SIGKILL", killed_from_outside=True),
            "The program was not watched. SIGKILL from outside ended it after 0.0 s.",
        ),
        ("", Ended(exit_code=1, disk_full=True), "The program was not watched: the disk was full."),
        (
            None,
            Ended(exit_code=None, parent_killed=True, killed_from_outside=True),
            "The program was not watched. The harness itself was killed after 0.0 s.",
        ),
    ],
)
def test_why_nothing_was_recorded(events, ended, said, tmp_path, capsys):
    if events is not None:
        (tmp_path / "events.jsonl").write_text(events)
    if ended is not None:
        write_ended(tmp_path, ended)
    assert command.main([str(tmp_path)]) == 3
    assert read(tmp_path).headline.startswith(said)
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_damaged_earlier_report_is_replaced(folder):
    (folder / "report.json").write_text("{", encoding="utf-8")
    assert command.main([str(folder)]) == 1
    assert read(folder).verdict == "found"


def test_a_folder_that_cannot_be_written_is_reported_on_all_the_same(folder, capsys, monkeypatch):
    def refuse(report, folder):
        raise PermissionError(13, "Permission denied", str(folder / "report.json"))

    monkeypatch.setattr(command, "write_all", refuse)
    assert command.main([str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("FOUND")
    assert captured.err == (
        f"harness.report: the folder's files stay as they are: {folder}/report.json: "
        "Permission denied\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "missing is no folder"),
        (["file"], "file is a file, not a run folder"),
        (["empty"], "empty is no run folder: it has neither events.jsonl nor ended.json"),
        (["run", "--format", "pdf"], "--format"),
        (["run", "--out", "missing/out"], "cannot write to --out missing/out: No such file"),
        (["run", "--out", "empty"], "cannot write to --out empty: Is a directory"),
        (["run", "--out", "file/out"], "cannot write to --out file/out: Not a directory"),
        ([], "harness.report: error: missing: PATH\n"),
    ],
)
def test_an_error_of_use_is_one_line(arguments, said, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    Path("file").touch()
    Path("empty").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said.lower() in captured.err.lower()
    assert sorted(path.name for path in folder.iterdir()) == before


class TestDamagedFolders:
    """What can be read is reported, and what cannot is told from what is not there."""

    @pytest.fixture
    def clean(self, tmp_path):
        return Path(shutil.copytree(RECORDING.with_name("single_thread"), tmp_path / "clean"))

    def gaps(self, folder):
        command.main([str(folder)])
        report = read(folder)
        return report, {item.name: item for item in report.not_watched}

    @pytest.mark.parametrize("text", ["", '{"exit_code": ', "[]", "\x00\x00"])
    def test_a_damaged_end_is_not_a_missing_one(self, clean, text):
        (clean / "ended.json").write_text(text, encoding="utf-8")
        report, gaps = self.gaps(clean)
        assert report.ended is None
        assert gaps["ended.json"].state == "damaged"
        assert "cannot be read" in gaps["ended.json"].reason
        assert report.verdict == "incomplete"
        assert "ended.json cannot be read" in gaps["the program's end"].reason

    def test_a_damaged_end_of_a_recording_without_one(self, clean):
        events = (clean / "events.jsonl").read_bytes().splitlines(keepends=True)
        (clean / "events.jsonl").write_bytes(b"".join(events[:-1]))
        (clean / "ended.json").write_text("{")
        report, gaps = self.gaps(clean)
        assert report.verdict == "incomplete"
        assert "ended.json cannot be read" in gaps["the program's end"].reason
        (clean / "ended.json").unlink()
        assert "no ended.json is there" in self.gaps(clean)[1]["the program's end"].reason

    def test_a_damaged_run_json_hides_what_was_asked_for(self, clean):
        (clean / "run.json").write_text("{")
        report, gaps = self.gaps(clean)
        assert report.verdict == "incomplete"
        assert (gaps["run.json"].state, gaps["run.json"].decisive) == ("damaged", True)

    def test_half_a_line_is_said(self, clean):
        events = clean / "events.jsonl"
        events.write_bytes(events.read_bytes()[:-30])
        report, gaps = self.gaps(clean)
        assert "ends in the middle of a line" in gaps["recording"].reason
        assert report.verdict == "incomplete"
        assert "the recording was cut short" in gaps["the program's end"].reason

    def test_a_folder_in_which_nothing_was_recorded_yet(self, tmp_path):
        write_run(tmp_path, Run(prog="harness.watch", replay="python -m harness.watch -- x.py"))
        assert command.main([str(tmp_path)]) == 3
        assert read(tmp_path).headline == "There is no recording."

    def test_an_ended_run_whose_events_are_gone(self, clean):
        (clean / "events.jsonl").unlink()
        report, _ = self.gaps(clean)
        assert report.headline.endswith(
            "or the recording is gone. It ended with exit code 0 after "
            f"{report.ended.wall_s:.1f} s."
        )
