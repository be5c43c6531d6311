"""Run folders and ended.json."""

import datetime as dt
import stat
import threading
from pathlib import Path

import pytest

from dflash_min.errors import UsageError
from harness.events.ended import Ended, ThreadWait, read_ended, write_ended
from harness.supervise.folder import make_run_folder, missing_parents, remove_run_folder, tail


def test_the_name_says_when_and_what_and_only_the_owner_may_read(tmp_path) -> None:
    now = dt.datetime(2026, 11, 29, 8, 5, 1, tzinfo=dt.UTC)
    folder = make_run_folder(tmp_path / "a" / "b", "watch-my script/../x", now)
    assert folder == (tmp_path / "a" / "b" / "20261129T080501Z-watch-my-script-..-x").resolve()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("slug", ["", "...", "///", "-" * 300, "\x00\n"])
def test_any_slug_gives_a_plain_name(tmp_path, slug) -> None:
    folder = make_run_folder(tmp_path, slug)
    assert folder.parent == tmp_path.resolve()
    assert folder.name.endswith("-run")


def test_names_are_unique_under_races(tmp_path) -> None:
    now = dt.datetime.now(dt.UTC)
    made: list[Path] = []
    barrier = threading.Barrier(16)

    def make() -> None:
        barrier.wait()
        made.append(make_run_folder(tmp_path, "same", now))

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16


def test_an_output_folder_that_cannot_be_written_is_a_usage_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to the output folder .*file"):
        make_run_folder(tmp_path / "file", "x")
    with pytest.raises(UsageError):
        make_run_folder(tmp_path / "file" / "below", "x")
    with pytest.raises(UsageError):
        make_run_folder(Path("/proc/here"), "x")


def test_removing_leaves_what_others_have_in_the_output_folder(tmp_path) -> None:
    out = tmp_path / "made" / "out"
    made = missing_parents(out)
    assert made == [out, tmp_path / "made"]
    first, second = make_run_folder(out, "x"), make_run_folder(out, "y")
    (first / "deep").mkdir()
    remove_run_folder(first, made)
    assert list(out.iterdir()) == [second]
    remove_run_folder(second, made)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_was_there_stays(tmp_path) -> None:
    folder = make_run_folder(tmp_path, "x")
    remove_run_folder(folder, missing_parents(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_tail(tmp_path) -> None:
    path = tmp_path / "log"
    assert tail(path, 10) == ""
    path.write_bytes(b"0123456789\xffend")
    assert tail(path, 4) == "\ufffdend"
    assert tail(path, 400) == "0123456789\ufffdend"


def test_ended_is_written_whole_and_read_back(tmp_path) -> None:
    assert read_ended(tmp_path) is None
    ended = Ended(exit_code=None, signal=11, signal_name="SIGSEGV", stacks="a\x00b\n", wall_s=1.5)
    write_ended(tmp_path, ended)
    write_ended(tmp_path, ended)
    assert read_ended(tmp_path) == ended
    assert [path.name for path in tmp_path.iterdir()] == ["ended.json"]


def test_a_secret_in_a_threads_name_is_not_written_with_what_it_waits_for(tmp_path) -> None:
    token = "hf_" + "a1b2c3d4" * 4
    wait = ThreadWait(pid=1, tid=2, thread=f"get {token}", what=f"`locks['{token}']`")
    write_ended(tmp_path, Ended(exit_code=None, waits=[wait], stacks=f'Thread 2: "get {token}"'))
    assert token not in (tmp_path / "ended.json").read_text()
    (kept,) = read_ended(tmp_path).waits
    assert (kept.thread, kept.what) == ("get ***", "`locks['***']`")
