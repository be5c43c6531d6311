"""A run that fails: what it tells, and that all that was whole before is saved."""

from __future__ import annotations

import resource

import pytest
import torch

from dflash_min import train
from dflash_min.config import SaveConfig
from dflash_min.errors import NotFiniteError, SaveError
from dflash_min.saving import checkpoint, metrics

from .failures import BrokenError, disk_that_fills_up, dying_after, with_kernels
from .saved_runs import SETTINGS, everything, lines, stopping_after
from .trainers import bits, flags, ignore, small_dense, state

pytestmark = pytest.mark.usefixtures("threads_end")


def poisoned(replica, step, value):
    """Let a replica's loss be `value` in one step (from 1)."""
    inner = replica.forward

    def forward(batch):
        sums = inner(batch)
        if batch.step + 1 == step:
            sums.weighted_sum.data.fill_(value)
        return sums

    replica.forward = forward


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_named_and_what_was_before_it_is_saved(value, tmp_path):
    before = small_dense(SaveConfig(out=tmp_path / "before"), **SETTINGS)
    stopping_after(before, 3)
    trainer = small_dense(SaveConfig(out=tmp_path / "run"), **SETTINGS)
    poisoned(trainer.replicas[1], 4, value)
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    (error,) = caught.value.exceptions
    assert isinstance(error, NotFiniteError)
    number = 3 * 3 + 1
    ids, _ = trainer.text.batch(number, 128, 1)
    start = int(str(error).split("from token ")[1].split(" ")[0])
    assert trainer.text._train._tokens[start : start + 128].tolist() == ids[0].tolist()
    assert str(error) == (
        f"the loss is {value} in step 4, thread drafter-1, batch {number} "
        f"(128 tokens of the training text from token {start} on)"
    )
    assert everything(trainer) == everything(before)
    assert lines(tmp_path / "run") == lines(tmp_path / "before")
    saved = checkpoint.read(tmp_path / "run")
    assert saved.step == 3
    assert bits(saved.weights) == state(before.replicas[0].drafter)


def overflowing(trainer, step):
    """Let one replica's gradient be infinite in a step (from 1), and its loss not.

    As with fused kernels, which refuse it before anybody knows.
    """
    batches = []
    forward, first = trainer.replicas[1].forward, trainer.replicas[1].parameters[0]
    trainer.replicas[1].forward = lambda batch: forward(batches.append(batch.step + 1) or batch)
    first.register_hook(lambda g: g * float("inf") if batches[-1] == step else g)
    return [with_kernels(optimizer) for optimizer in trainer.optimizers]


@pytest.mark.parametrize("step", [3, 5])
@pytest.mark.parametrize("every", [0, 1])
def test_a_gradient_that_overflows_ends_the_run_and_is_in_no_checkpoint(step, every, tmp_path):
    save = SaveConfig(out=tmp_path, save_every=every)
    trainer = small_dense(save, **SETTINGS, eval_batches=1, eval_every=1)
    kernels, evaluated = overflowing(trainer, step), []
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore, lambda evaluation: evaluated.append(evaluation.step))
    assert evaluated == list(range(1, step))
    assert {str(error) for error in caught.value.exceptions} == {
        f"step {step}: the norm of the gradients is inf"
    }
    assert {type(error) for error in caught.value.exceptions} == {NotFiniteError}
    assert trainer.finished == step - 1
    assert [each.taken for each in kernels] == [list(range(1, step))] * 3
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names[-1] == f"step-{step - 1:08}"
    saved = checkpoint.read(tmp_path)
    assert saved.step == step - 1
    assert bits(saved.weights) == state(trainer.replicas[0].drafter)


def test_a_gradient_that_overflows_in_the_step_of_a_stop_is_told_too(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    overflowing(trainer, 3)
    with pytest.raises(ExceptionGroup) as caught:
        stopping_after(trainer, 3)
    (error,) = caught.value.exceptions
    assert str(error) == "step 3: the norm of the gradients is inf"
    assert checkpoint.read(tmp_path).step == 2


def test_the_command_tells_once_what_all_drafters_find(tmp_path, monkeypatch, capsys):
    build = train._run

    def run(trainer, ending):
        for replica in trainer.replicas:
            replica.forward = replica.forward_dense
        overflowing(trainer, 2)
        return build(trainer, ending)

    monkeypatch.setattr(train, "_run", run)
    with pytest.raises(SystemExit):
        train.main(flags(threads=2, warmup="none", out=tmp_path / "run"))
    said = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert said == ["dflash_min.train: error: step 2: the norm of the gradients is inf"]


def test_the_command_tells_of_such_a_loss_in_two_lines(tmp_path, monkeypatch, capsys):
    build = train._run

    def run(trainer, ending):
        for replica in trainer.replicas:
            replica.forward = replica.forward_dense
        poisoned(trainer.replicas[0], 2, float("nan"))
        return build(trainer, ending)

    monkeypatch.setattr(train, "_run", run)
    argv = flags(threads=2, warmup="none", out=tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        train.main(argv)
    assert stop.value.code == 1
    *_, error, saved = capsys.readouterr().err.splitlines()
    assert error.startswith(
        "dflash_min.train: error: the loss is nan in step 2, thread drafter-0, batch 2 ("
    )
    assert saved == (
        f"dflash_min.train: saved {tmp_path}/run/checkpoints/step-00000001; "
        f"go on with: python -m dflash_min.train {' '.join(argv)} --resume"
    )


def test_a_dead_target_loses_no_step(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    dying_after(9, trainer.targets[0])
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    assert [type(error) for error in caught.value.exceptions] == [BrokenError]
    # Nine batches were made: those of three steps, of which any number may have been trained.
    assert len(lines(tmp_path)) == trainer.finished <= 3
    if trainer.finished:
        saved = checkpoint.read(tmp_path)
        assert saved.step == trainer.finished
        assert bits(saved.weights) == state(trainer.replicas[1].drafter)


def test_a_disk_that_fills_up_ends_training_with_the_last_checkpoint_whole(tmp_path, capsys):
    """A limit on the size of files is to a writer what a full disk is."""
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=2), **SETTINGS)

    with disk_that_fills_up() as fill, pytest.raises(ExceptionGroup) as caught:
        trainer.run(lambda report: fill(8000) if report.step + 1 == 3 else None)
    (error,) = caught.value.exceptions
    assert isinstance(error, SaveError)
    assert str(error) == (
        f"{tmp_path}/checkpoints/step-00000004 cannot be written: File too large; "
        f"the newest checkpoint is still {tmp_path}/checkpoints/step-00000002"
    )
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    resumed = small_dense(SaveConfig(out=tmp_path, resume=True), **SETTINGS)
    resumed.run(ignore)
    whole = small_dense(**SETTINGS)
    whole.run(ignore)
    assert everything(resumed) == everything(whole)


def test_a_disk_that_fills_up_in_a_line_of_metrics_leaves_whole_lines(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=2), **SETTINGS)
    path = tmp_path / metrics.FILE

    with disk_that_fills_up() as fill:

        def filled(report):
            if report.step + 1 == 3:
                fill(path.stat().st_size + 10)

        with pytest.raises(ExceptionGroup) as caught:
            trainer.run(filled)
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == path.stat().st_size + 10
    (error,) = caught.value.exceptions
    assert str(error) == (
        f"{path} cannot be written: File too large; "
        f"the newest checkpoint is still {tmp_path}/checkpoints/step-00000002"
    )
    assert path.read_bytes().endswith(b"}\n")
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_replicas_that_differ_are_not_saved(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=1), **SETTINGS)

    def spoil(report):
        if report.step + 1 == 2:
            weight = trainer.replicas[2].drafter.norm.weight
            weight.data.view(torch.int32)[0] ^= 1

    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(spoil)
    (error,) = caught.value.exceptions
    assert isinstance(error, SaveError)
    assert str(error).startswith("not saved: norm.weight differs between drafter-0 and drafter-2")
    assert checkpoint.read(tmp_path).step == 1
