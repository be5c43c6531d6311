"""Source lines in a report: of the frames shown, and only while the file is what ran."""

import os
from pathlib import Path

import msgspec
import pytest

from harness.diagnosis.build import diagnose
from harness.diagnosis.report import SourceLine
from harness.diagnosis.shown import report_to_show
from harness.diagnosis.source import LONGEST, frames_shown, shown, with_source
from harness.events.run import Run, write_run
from harness.events.values import Frame
from harness.render.stacks import fold

RECORDINGS = Path(__file__).parents[1] / "recordings"
BEGAN = 1_700_000_000.0


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "p.py"
    text = "# coding: latin-1\ndef f():\n    raise ValueError('grün')\n\n"
    path.write_text(text, encoding="latin-1")
    os.utime(path, (BEGAN - 60, BEGAN - 60))
    return path


def report_of(*frames, began=BEGAN):
    """A report of which the creation stack of a thread is these frames."""
    report = diagnose(RECORDINGS / "single_thread")
    thread = msgspec.structs.replace(report.threads[0], creation_stack=frames)
    return msgspec.structs.replace(
        report,
        findings=(),
        errors=(),
        threads=(thread,),
        environment=msgspec.structs.replace(report.environment, started_unix=began),
    )


def frame(path, line, *, user=True):
    return Frame(str(path), line, "f", user=user)


def test_a_line_is_read_once_without_its_indentation(program) -> None:
    report = with_source(report_of(frame(program, 3), frame(program, 2), frame(program, 3)))
    assert report.source == (
        SourceLine(str(program), 2, "def f():"),
        SourceLine(str(program), 3, "raise ValueError('grün')"),
    )


def test_a_file_that_was_changed_since_gives_no_line(program) -> None:
    report = report_of(frame(program, 3))
    assert with_source(report).source
    os.utime(program, (BEGAN + 1, BEGAN + 1))
    assert with_source(report).source == ()


@pytest.mark.parametrize(
    ("name", "line"),
    [("absent.py", 1), ("p.py", 4), ("p.py", 99), ("p.py", -1), ("broken.py", 1)],
)
def test_what_cannot_be_read_is_left_out(name, line, program) -> None:
    broken = program.with_name("broken.py")
    broken.write_bytes(b"# coding: klingon\nx = 1\n")
    os.utime(broken, (BEGAN - 60, BEGAN - 60))
    assert with_source(report_of(frame(program.with_name(name), line))).source == ()


@pytest.mark.parametrize("name", ["<string>", "<frozen runpy>", "\0", "x" * 5000])
def test_what_is_no_file_is_left_out(name) -> None:
    assert with_source(report_of(frame(name, 1))).source == ()


def test_a_pipe_does_not_hold_the_report_up(tmp_path) -> None:
    os.mkfifo(tmp_path / "p.py")
    os.utime(tmp_path / "p.py", (BEGAN - 60, BEGAN - 60))
    assert with_source(report_of(frame(tmp_path / "p.py", 1))).source == ()


def test_a_run_whose_beginning_is_not_known_gives_no_line(program) -> None:
    assert with_source(report_of(frame(program, 3), began=0.0)).source == ()


def test_a_line_of_generated_code_is_cut(program) -> None:
    program.write_text("x = [" + "1, " * 1000 + "]\n")
    os.utime(program, (BEGAN - 60, BEGAN - 60))
    (line,) = with_source(report_of(frame(program, 1))).source
    assert len(line.text) == LONGEST


@pytest.mark.parametrize(
    "path", sorted(RECORDINGS.glob("*/events.jsonl")), ids=lambda path: path.parent.name
)
def test_the_frames_shown_are_those_that_the_renderers_do_not_fold(path) -> None:
    report = diagnose(path.parent)
    stacks = [stack.frames for finding in report.findings for stack in finding.stacks]
    stacks += [tuple(reversed(link.frames)) for error in report.errors for link in error.chain]
    stacks += [thread.creation_stack for thread in report.threads]
    unfolded = []
    for frames in stacks:
        folded = fold(frames)
        rows = [*([folded.inside] if folded.inside else []), *folded.rows]
        assert [row.frame for row in rows if row.frame] == shown(frames)
        unfolded += shown(frames)
    assert set(unfolded) == set(frames_shown(report))


def test_a_run_asked_for_none_gets_none_when_it_is_reported_on_again(tmp_path) -> None:
    header = (RECORDINGS / "value_error" / "events.jsonl").read_text()
    recorded = next(f.file for f in frames_shown(diagnose(RECORDINGS / "value_error")) if f.user)
    program = tmp_path / "program.py"
    program.write_text("x = 1\n" * 200)
    os.utime(program, (BEGAN - 60, BEGAN - 60))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_text(header.replace(recorded, str(program)))
    assert {line.text for line in report_to_show(folder).source} == {"x = 1"}
    assert report_to_show(folder, no_source=True).source == ()
    write_run(folder, Run(no_source=True))
    assert report_to_show(folder).source == ()
