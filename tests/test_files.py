"""The names of a run folder's files: the parent's are those that the child writes."""

import os

from harness.child.boot import FAILURE
from harness.child.recorder import Recorder
from harness.child.session import FAULTS
from harness.events import files


def test_the_parent_finds_what_the_child_writes(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", {})
    recorder.emit("step", {"step": 1})
    assert files.event_files(tmp_path) == [tmp_path / files.EVENTS]
    (segment,) = files.segments(tmp_path)
    assert files.segment_number(segment) == (f"steady-{os.getpid()}", 1)
    recorder.after_fork()
    recorder.emit("thread_start", {})
    forked = files.events_of(tmp_path, os.getpid())
    assert files.event_files(tmp_path) == [tmp_path / files.EVENTS, forked]
    found = {*files.event_files(tmp_path), *files.segments(tmp_path)}
    assert found == set(tmp_path.iterdir())


def test_the_main_processs_recording_comes_first_and_may_be_missing(tmp_path) -> None:
    for name in ("events-9.jsonl", "events-10.jsonl", "report.json", FAILURE, FAULTS):
        (tmp_path / name).touch()
    others = [tmp_path / "events-10.jsonl", tmp_path / "events-9.jsonl"]
    assert files.event_files(tmp_path) == others
    (tmp_path / files.EVENTS).touch()
    assert files.event_files(tmp_path) == [tmp_path / files.EVENTS, *others]


def test_names_that_no_recorder_gives_have_no_number(tmp_path) -> None:
    assert files.segment_number(tmp_path / "steady-old.jsonl") is None
    assert files.segment_number(tmp_path / "steady-7-000012.jsonl") == ("steady-7", 12)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path) -> None:
    path = tmp_path / "report.json"
    files.write_whole(path, "old")
    try:
        files.write_whole(path, "\udcff")
    except UnicodeEncodeError:
        assert path.read_text() == "old"
    else:
        raise AssertionError("a lone surrogate was written as UTF-8")
    assert list(tmp_path.iterdir()) == [path]
