"""What is on disk at any moment, and what is made of it when something is wrong there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dflash_min
from dflash_min.config import ModelConfig, SaveConfig, TrainConfig
from dflash_min.errors import SaveError, UsageError
from dflash_min.resolve import resolve
from dflash_min.saving import checkpoint, resuming, run_folder
from dflash_min.saving.checkpoint import DamagedError, FormatError, Record
from dflash_min.saving.run_folder import Beginning, RunFolder

from .trainers import SIZES

ROOT = str(Path(dflash_min.__file__).parents[1])
CONFIG = ModelConfig(
    hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=16, layers=2, target_layers=6, block_size=4
)
FILES = ("checkpoint.json", "drafter.pt", "optimizer.pt")


def record(step: int) -> Record:
    return Record(
        step=step, seed=7, target="", config=CONFIG, settings={"lr": 6e-4}, digests={"text": "ab"}
    )


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"norm.weight": torch.tensor([step + 0.1, float("nan"), -0.0])}


def optimizer(step: int) -> dict[str, object]:
    return {"state": {0: {"exp_avg": torch.full((3,), step / 3)}}, "groups": [{"lr": 1 / 3}]}


def save(out: Path, *steps: int) -> Path:
    for step in steps:
        path = checkpoint.write(
            out / checkpoint.FOLDER, record(step), weights(step), optimizer(step)
        )
    return path


def names(out: Path) -> set[str]:
    return {path.name for path in (out / checkpoint.FOLDER).iterdir()}


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


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(keep, tmp_path):
    save = SaveConfig(out=tmp_path, keep_checkpoints=keep)
    with RunFolder.opened(save, Beginning()) as folder:
        for step in (5, 10, 99_999_999, 100_000_000):
            folder.save(record(step), weights(step), optimizer(step))
            assert folder.newest == checkpoint.latest(tmp_path)
    kept = ["step-00000005", "step-00000010", "step-99999999", "step-100000000"][-keep:]
    assert names(tmp_path) == set(kept)


# Every call that Python reports to an audit hook is a moment: each open, rename, deletion. The
# process forks, and the fork kills itself at the n-th, for every n that there is.
KILLED_AT_EVERY_MOMENT = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from tests.dflash_min.test_checkpoint import *

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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


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


BASE = TrainConfig(**SIZES, data=(Path("a.txt"),))


OF_TARGET = "; it is a size of the target: is --target another one?"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden": 32}, f"hidden 16, this run 32{OF_TARGET}"),
        ({"heads": 4}, f"heads 2, this run 4{OF_TARGET}"),
        ({"kv_heads": 2}, f"kv_heads 1, this run 2{OF_TARGET}"),
        ({"head_dim": 4}, f"head_dim 8, this run 4{OF_TARGET}"),
        ({"mlp": 8}, f"mlp 16, this run 8{OF_TARGET}"),
        ({"layers": 1}, "layers 2, this run 1"),
        ({"target_layers": 7}, "target_layer_ids 1,3, this run 1,4"),
        ({"block_size": 8}, "block_size 4, this run 8"),
        ({"seed": 1}, "seed 0, this run 1"),
        ({"seq_lens": (96,)}, "seq_lens 96,128, this run 96"),
        ({"shapes": "fixed"}, "shapes varying, this run fixed"),
        ({"anchors": "vary"}, "anchors 32, this run vary"),
        ({"batch_size": 2}, "batch_size 1, this run 2"),
        ({"accumulate": 2}, "accumulate 1, this run 2"),
        ({"lr": 1e-3}, "lr 0.0006, this run 0.001"),
        ({"lr_warmup": 0.5}, "lr_warmup 0.04, this run 0.5"),
        ({"weight_decay": 0.1}, "weight_decay 0.0, this run 0.1"),
        ({"max_grad_norm": float("inf")}, "max_grad_norm 1.0, this run none"),
        ({"threads": 2}, "drafters 3, this run 2; each trains on batches of its own"),
        ({"steps": 9}, "steps 3, this run 9; the learning rate's schedule depends on it"),
        ({"dtype": "bfloat16"}, "dtype float32, this run bfloat16"),
    ],
)
def test_what_changes_results_is_refused_by_name_and_both_values(changed, message):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    with pytest.raises(UsageError) as caught:
        resuming.check(old, new)
    assert str(caught.value) == f"--resume: the checkpoint has {message}"
    assert resuming.check(old, old) == []


def test_another_mask_token_is_refused():
    old = resuming.settings(resolve(BASE, 0))
    assert old["mask_token_id"] == 256
    with pytest.raises(UsageError) as caught:
        resuming.check(old, {**old, "mask_token_id": 300})
    assert str(caught.value) == "--resume: the checkpoint has mask_token_id 256, this run 300"


@pytest.mark.parametrize(
    "changed",
    [
        {"queue_depth": 5},
        {"warmup": "none"},
        {"warmup_lens": (64,)},
        {"warmup_devices": "first"},
        {"layout": "2+3"},
        {"eval_batches": 2},
        {"data": (Path("b.txt"),)},  # the same text, or its digest tells
    ],
)
def test_what_changes_no_result_may_differ(changed):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    assert resuming.check(old, new) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"backend": "eager"},
        {"loss_chunk": 7},
        {"activation_checkpointing": False},
        {"fused": ("mask",)},
    ],
)
def test_what_changes_rounding_is_said(changed):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    (note,) = resuming.check(old, new)
    name = next(iter(changed))
    was, now = (resuming.settings(resolve(c, 0))[name] for c in (BASE, replace(BASE, **changed)))
    said = "fused was none and is mask" if name == "fused" else f"{name} was {was} and is {now}"
    assert note == f"{said}: results go on equal within rounding, not bit for bit"
