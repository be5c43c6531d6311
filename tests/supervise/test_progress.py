"""What is shown while a program runs."""

import json
from types import SimpleNamespace

import pytest

from harness.supervise import progress as progress_module
from harness.supervise.progress import Counters, Growing, Progress


def event(point: str, edge: str = "instant", **data) -> bytes:
    return json.dumps({"point": point, "edge": edge, "data": data, "new": 1}).encode() + b"\n"


def test_counts_follow_the_recording(tmp_path) -> None:
    counters = Counters(tmp_path)
    counters.update()
    assert counters.text().startswith("starting · 0 threads started · 0 compiles")
    log = (tmp_path / "events.jsonl").open("ab", buffering=0)
    log.write(event("header", schema=1) + event("phase", "enter", name="warmup"))
    log.write(event("dynamo_compile", "enter") + event("dynamo_compile", "exit"))
    log.write(b"not json\n" + event("guard_miss") + event("thread_start", name="w"))
    whole = event("thread_error")
    log.write(whole[:20])
    counters.update()
    assert (counters.phase, counters.compiles, counters.misses) == ("warmup", 1, 1)
    assert (counters.threads, counters.errors) == (1, 0)
    log.write(whole[20:] + event("phase", "exit", name="warmup"))
    (tmp_path / "steady-7-000001.jsonl").write_bytes(event("step", step=3))
    counters.update()
    assert (counters.errors, counters.step, counters.phase) == (1, 3, "warmup")
    (tmp_path / "steady-7-000002.jsonl").write_bytes(event("step", step=9))
    counters.update()
    assert "step 9" in counters.text()
    log.close()


def test_a_file_is_read_once_and_in_whole_lines(tmp_path) -> None:
    path = tmp_path / "log"
    growing = Growing(path)
    assert growing.new_lines() == []
    path.write_bytes(b"one\ntw")
    assert growing.new_lines() == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert growing.new_lines() == [b"two", b"three"]
    assert growing.new_lines() == []


def test_verbose_copies_the_log_whole(tmp_path, capfd) -> None:
    log = tmp_path / "child.log"
    log.write_bytes("grün ".encode() * 1000)
    (tmp_path / "events.jsonl").write_bytes(event("phase", "enter", name="train"))
    with Progress("harness.run", tmp_path, log=log, quiet=False) as progress:
        progress.tick()
        with log.open("ab") as file:
            file.write(b"last words")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"harness.run: recording in {tmp_path}\n" + "grün " * 1000 + "last words"


@pytest.mark.parametrize("quiet", [False, True])
def test_off_a_terminal_a_start_line_is_all(tmp_path, capfd, quiet) -> None:
    (tmp_path / "events.jsonl").write_bytes(event("phase", "enter", name="train"))
    with Progress("harness.run", tmp_path, log=None, quiet=quiet) as progress:
        progress.tick()
    assert capfd.readouterr() == ("", f"harness.run: recording in {tmp_path}\n")


def test_the_folder_is_named_before_a_program_of_somebody_elses_has_done_anything(
    tmp_path, capfd
) -> None:
    with Progress("harness.watch", tmp_path, log=None, quiet=True) as progress:
        progress.tick()
        assert capfd.readouterr() == ("", f"harness.watch: recording in {tmp_path}\n")
        progress.tick()
    assert capfd.readouterr() == ("", "")


def test_there_is_no_line_before_the_program_is_at_work(tmp_path, capfd) -> None:
    (tmp_path / "events.jsonl").write_bytes(event("thread_start", "instant"))
    with Progress("harness.run", tmp_path, log=None, quiet=False) as progress:
        progress.tick()
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_one_line_is_rewritten_and_removed(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "events.jsonl").write_bytes(event("phase", "enter", name="train"))
    seconds = iter([1000.0, 1083.5])
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(progress_module, "time", clock)
    with Progress("harness.run", tmp_path, log=None, quiet=False) as progress:
        progress.tick()
    out, err = capfd.readouterr()
    assert out == ""
    assert "harness.run 01:23 · train · 0 threads started" in err
    assert err.rstrip().endswith("\x1b[2K")
