"""What is on disk at any moment, and what is made of it when something is wrong there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import dflash_min
from dflash_min.config import SaveConfig
from dflash_min.errors import SaveError, UsageError
from dflash_min.saving import checkpoint, run_folder
from dflash_min.saving.checkpoint import DamagedError, FormatError
from dflash_min.saving.run_folder import RunFolder

from .checkpoints import CONFIG, cut, names, optimizer, record, save, weights

ROOT = str(Path(dflash_min.__file__).parents[1])
FILES = ("checkpoint.json", "drafter.pt", "optimizer.pt")


def test_what_is_read_is_what_was_written(tmp_path):
    path = save(tmp_path, 3)
    assert path.name == "step-00000003"
    for place in (path, tmp_path):
        found = checkpoint.read(place)
        assert (found.path, found.step, found.seed, found.target) == (path, 3, 7, "")
        assert (found.config, found.record) == (CONFIG, record(3))
        assert found.weights.keys() == {"norm.weight"}
        assert found.weights["norm.weight"].numpy().tobytes() == (
            weights(3)["norm.weight"].numpy().tobytes()
        )
        state = found.optimizer()
        assert state["groups"] == [{"lr": 1 / 3}]
        assert state["state"][0]["exp_avg"].equal(torch.full((3,), 1.0))


# Every call that Python reports to an audit hook is a moment: each open, rename, deletion. The
# process forks, and the fork kills itself at the n-th, for every n that there is.
KILLED_AT_EVERY_MOMENT = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from dflash_min.config import SaveConfig
    from dflash_min.saving import checkpoint, run_folder
    from dflash_min.saving.run_folder import RunFolder
    from tests.dflash_min.checkpoints import names, optimizer, record, save, weights

    WRITING = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.scandir", "os.chmod"}
    left = None
    def hook(event, arguments):
        global left
        if left is not None and event in WRITING:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
    sys.addaudithook(hook)

    def save_one_more(out, step):
        settings = SaveConfig(out=out, keep_checkpoints=2, resume=True)
        with RunFolder.opened(settings, run_folder.find(settings)[0]) as folder:
            folder.save(record(step), weights(step), optimizer(step))

    moment, outcomes = 0, []
    while True:
        out = Path(sys.argv[2]) / str(moment)
        save(out, 1, 2)
        if not (child := os.fork()):
            left = moment
            save_one_more(out, 3)
            left = None
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not ended:
            break
        assert ended == -signal.SIGKILL, ended
        newest = checkpoint.read(out)
        outcomes.append(newest.step)
        assert newest.weights["norm.weight"][0] == weights(newest.step)["norm.weight"][0]
        newest.optimizer()
        assert [checkpoint.damage(path) for path in checkpoint.saved(out / "checkpoints")].count(
            None) == len(checkpoint.saved(out / "checkpoints")) >= 2
        save_one_more(out, 4)
        assert names(out) in ({"step-00000004", f"step-0000000{newest.step}"},), names(out)
        moment += 1
    assert names(out) == {"step-00000002", "step-00000003"}, names(out)
    assert outcomes == sorted(outcomes)
    print(len(outcomes), outcomes.count(2), outcomes.count(3))
"""


def test_killed_at_any_moment_the_previous_or_the_new_one_is_whole(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(KILLED_AT_EVERY_MOMENT), ROOT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    moments, before, after = map(int, done.stdout.split())
    assert moments == before + after
    assert before >= 5  # three files are opened before the new name is there,
    assert after >= 2  # and an old one is renamed and deleted after that


@pytest.mark.parametrize("name", FILES[1:])
def test_a_full_disk_leaves_all_that_was_there(name, tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    opened = Path.open

    def failing(path, *args, **options):
        file = opened(path, *args, **options)
        if path.name == name and args == ("xb",):
            file.close()
            file = opened(Path("/dev/full"), "wb", buffering=0)
        return file

    monkeypatch.setattr(Path, "open", failing)
    settings = SaveConfig(out=tmp_path, resume=True)
    with RunFolder.opened(settings, run_folder.find(settings)[0]) as folder:
        with pytest.raises(SaveError) as caught:
            folder.save(record(3), weights(3), optimizer(3))
        assert folder.newest == tmp_path / "checkpoints/step-00000002"
    assert str(caught.value) == (
        f"{tmp_path}/checkpoints/step-00000003 cannot be written: No space left on device; "
        f"the newest checkpoint is still {tmp_path}/checkpoints/step-00000002"
    )
    monkeypatch.undo()
    assert names(tmp_path) == {"step-00000001", "step-00000002"}
    assert checkpoint.read(tmp_path).step == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def garble(path: Path) -> None:
    path.write_bytes(b"\x80\x04garbage")


@pytest.mark.parametrize("harm", [cut, flip, garble, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_an_older_one_is_taken(name, harm, tmp_path):
    newest = save(tmp_path, 1, 2)
    harm(newest / name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    beginning, found = run_folder.find(SaveConfig(out=tmp_path, resume=True))
    (note,) = beginning.notes
    assert (beginning.path, beginning.step) == (found.path, 1)
    assert found.step == checkpoint.read(tmp_path).step == 1
    assert note.startswith(f"{newest / name} ")
    assert note.endswith(f"going on from {tmp_path}/checkpoints/step-00000001, nothing is deleted")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    if name != "optimizer.pt" and (name, harm) != ("checkpoint.json", Path.unlink):
        with pytest.raises(DamagedError, match=name):
            checkpoint.read(newest)
    # The run comes by that step again; what is damaged makes room and is kept.
    assert save(tmp_path, 2) == newest
    assert names(tmp_path) == {"step-00000001", "step-00000002", "damaged-step-00000002"}


def test_with_nothing_whole_nothing_is_resumed(tmp_path):
    path = save(tmp_path, 4)
    cut(path / "drafter.pt")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UsageError) as caught:
        run_folder.find(SaveConfig(out=tmp_path, resume=True))
    assert str(caught.value) == (
        f"--resume: {path}/drafter.pt is damaged: its bytes are not those that were written, and "
        "there is no older whole checkpoint; put the file back from a copy, or begin again in "
        "another --out"
    )
    with pytest.raises(UsageError, match="no whole checkpoint is in"):
        checkpoint.read(tmp_path)


def test_another_value_in_the_record_is_seen(tmp_path):
    path = save(tmp_path, 4) / "checkpoint.json"
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    with pytest.raises(DamagedError, match="its values are not those written"):
        checkpoint.read(path.parent)


def test_a_checkpoint_of_another_format_is_not_read(tmp_path):
    path = save(tmp_path, 4) / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(FormatError, match="has format 2, and this version reads 1 only"):
        checkpoint.read(path.parent)


def test_a_newer_format_that_shares_nothing_is_no_damage(tmp_path):
    """Going on from the older checkpoint would put the newer one aside as damaged."""
    path = save(tmp_path, 3, 4) / "checkpoint.json"
    path.write_text('{"format": 2, "digests": ["a"]}')
    with pytest.raises(UsageError, match="has format 2, and this version reads 1 only"):
        run_folder.find(SaveConfig(out=tmp_path, resume=True))


def test_no_checkpoint_is_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="neither a checkpoint nor a run folder"):
            checkpoint.read(path)


def test_only_our_own_unfinished_folders_are_cleaned_away(tmp_path):
    folder = tmp_path / checkpoint.FOLDER
    theirs = {".DS_Store", ".mine", ".deleting-me", ".step-00000001.part"}
    ours = {".step-00000001.0123abcd.part", ".deleting-step-00000001", ".deleting-step-00000001-2"}
    for name in theirs | ours:
        (folder / name).mkdir(parents=True)
    (folder / ".DS_Store").rmdir()
    (folder / ".DS_Store").write_text("a file")
    save(tmp_path, 1)
    assert names(tmp_path) == theirs | {"step-00000001"}


def test_what_cannot_be_cleaned_away_stops_no_saving(tmp_path):
    """A file where a folder is expected cannot be deleted as one."""
    folder = tmp_path / checkpoint.FOLDER
    folder.mkdir()
    (folder / ".deleting-step-00000001").write_text("no folder")
    save(tmp_path, 1)
    assert checkpoint.read(tmp_path).step == 1


def test_each_file_is_hashed_once_for_a_run_that_goes_on(tmp_path, monkeypatch):
    save(tmp_path, 1)
    hashed, digest = [], hashlib.file_digest

    def counted(file, name):
        hashed.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    _, found = run_folder.find(SaveConfig(out=tmp_path, resume=True))
    assert found.weights.keys() == {"norm.weight"}
    assert found.optimizer()["groups"] == [{"lr": 1 / 3}]
    assert sorted(hashed) == ["drafter.pt", "optimizer.pt"]
