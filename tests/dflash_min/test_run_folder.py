"""A run's folder: who may write to it, and which checkpoints are kept there."""

from __future__ import annotations

import pytest

from dflash_min.config import SaveConfig
from dflash_min.errors import UsageError
from dflash_min.saving import checkpoint, run_folder
from dflash_min.saving.run_folder import Beginning, RunFolder

from .checkpoints import cut, names, optimizer, record, save, weights


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(keep, tmp_path):
    save = SaveConfig(out=tmp_path, keep_checkpoints=keep)
    with RunFolder.opened(save, Beginning()) as folder:
        for step in (5, 10, 99_999_999, 100_000_000):
            folder.save(record(step), weights(step), optimizer(step))
            assert folder.newest == checkpoint.latest(tmp_path)
    kept = ["step-00000005", "step-00000010", "step-99999999", "step-100000000"][-keep:]
    assert names(tmp_path) == set(kept)


def test_a_run_is_only_added_to_by_resuming_it(tmp_path):
    save(tmp_path, 4)
    with pytest.raises(UsageError) as caught:
        run_folder.find(SaveConfig(out=tmp_path))
    assert str(caught.value) == (
        f"--out {tmp_path}: a run is there already, saved up to step-00000004; "
        "add --resume, or name another folder"
    )
    with pytest.raises(UsageError, match="holds no run"):
        run_folder.find(SaveConfig(out=tmp_path / "typo", resume=True))


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path):
    with RunFolder.opened(SaveConfig(out=tmp_path), Beginning()) as folder:
        assert run_folder.find(SaveConfig(out=tmp_path)) == (Beginning(), None)
        folder.record(1, "train", {"loss": 1.0})
    beginning, found = run_folder.find(SaveConfig(out=tmp_path, resume=True))
    assert found is None
    assert beginning.notes == [f"{tmp_path} has no checkpoint yet: beginning with step 1"]
    with RunFolder.opened(SaveConfig(out=tmp_path, resume=True), beginning):
        assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with (
        RunFolder.opened(SaveConfig(out=tmp_path), Beginning()),
        pytest.raises(UsageError, match="another process is training there"),
        RunFolder.opened(SaveConfig(out=tmp_path), Beginning()),
    ):
        pass
    with RunFolder.opened(SaveConfig(out=tmp_path), Beginning()):
        pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="file: File exists"),
        RunFolder.opened(SaveConfig(out=tmp_path / "file"), Beginning()),
    ):
        pass


@pytest.mark.parametrize("trained_from", ["nothing", "a checkpoint", "before a damaged one"])
def test_what_another_process_saves_before_the_lock_is_kept(trained_from, tmp_path):
    """Two processes look at a folder, one trains and ends, and only then the other begins."""
    if trained_from != "nothing":
        newest = save(tmp_path, 1, 2)
    if trained_from == "before a damaged one":
        cut(newest / "drafter.pt")
    settings = SaveConfig(out=tmp_path, resume=trained_from != "nothing")
    first, second = (run_folder.find(settings)[0] for _ in range(2))
    with RunFolder.opened(settings, first) as folder:
        step = first.step + 1
        folder.record(step, "train", {"loss": 1.0})
        folder.save(record(step), weights(step), optimizer(step))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = "has trained in" if settings.resume else "a run is there already, saved up to step-"
    with pytest.raises(UsageError, match=message), RunFolder.opened(settings, second):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
