"""An interrupted run that goes on is, bit for bit, the run that was never interrupted."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch

import dflash_min
from dflash_min import train
from dflash_min.config import SaveConfig
from dflash_min.errors import UsageError
from dflash_min.saving import checkpoint
from dflash_min.targets import folder as target_folder
from dflash_min.targets.builtin import Target

from .saved_runs import SETTINGS, everything, lines, stopping_after
from .trainers import bits, flags, ignore, small, small_dense, state

pytestmark = pytest.mark.usefixtures("threads_end")

ROOT = str(Path(dflash_min.__file__).parents[1])


EVALUATED = {"eval_every": 2, "eval_batches": 1}


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        (EVALUATED, (1, 4)),
        ({"layout": "2+3", "accumulate": 2, "queue_depth": 3}, (2,)),
        ({"dtype": "bfloat16", "threads": 2}, (3,)),
        ({"layout": "5+1", "batch_size": 2, "weight_decay": 0.1}, (1, 2, 3, 4)),
    ],
)
def test_stopped_and_resumed_is_uninterrupted(settings, stops, tmp_path):
    settings = {**SETTINGS, **settings}
    if "layout" in settings:
        del settings["threads"]
    whole = small_dense(SaveConfig(out=tmp_path / "whole"), **settings)
    summary = whole.run(ignore)
    broken = tmp_path / "broken"
    for stop in stops:
        trainer = small_dense(SaveConfig(out=broken, resume=broken.exists()), **settings)
        before = trainer.finished
        part = stopping_after(trainer, stop)
        assert (trainer.finished, part.steps) == (stop, stop - before)
        assert trainer.newest == broken / f"checkpoints/step-{stop:08d}"
    # Nothing that another layout of targets, another queue or other saves change.
    last = small_dense(
        SaveConfig(out=broken, resume=True, save_every=1), **{**settings, "queue_depth": 1}
    )
    assert last.finished == stops[-1]
    end = last.run(ignore)
    assert everything(last) == everything(whole)
    assert lines(broken) == lines(tmp_path / "whole")
    assert (end.loss, end.held_out_loss) == (summary.loss, summary.held_out_loss)
    again = small_dense(SaveConfig(out=broken, resume=True), **settings)
    assert again.run(ignore).steps == 0
    assert everything(again) == everything(whole)


def test_training_is_the_same_saved_or_not(tmp_path):
    plain = small_dense(**SETTINGS)
    plain.run(ignore)
    saved = small_dense(SaveConfig(out=tmp_path, save_every=1), **SETTINGS)
    saved.run(ignore)
    assert everything(saved) == everything(plain)


def test_no_generator_that_lives_on_is_read_or_changed():
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        trainer = small_dense(**SETTINGS)
        before = (torch.get_rng_state(), random.getstate())
        trainer.run(ignore)
        assert torch.get_rng_state().equal(before[0])
        assert random.getstate() == before[1]
        ends.append(everything(trainer))
    assert ends[0] == ends[1]


RUN = """
    import os, signal, sys, threading
    from dflash_min import train
    from dflash_min.pipeline import Pipeline

    asked, stop = threading.Event(), Pipeline.stop
    Pipeline.stop = lambda self: (stop(self), asked.set())
    number, at = int(sys.argv[1]), int(sys.argv[2])
    show = train.Progress.__call__

    def shown(self, report):
        show(self, report)
        if report.step + 1 == at:
            os.kill(os.getpid(), number)
            asked.wait(60)  # until the main thread has taken the signal

    train.Progress.__call__ = shown
    train.main(sys.argv[3:])
"""


def signalled(number, step, argv):
    """Run the command and let it send itself a signal in its n-th step."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(int(number)), str(step), *argv],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_killed_then_told_to_end_then_resumed_is_uninterrupted(tmp_path, capsys):
    """Compiled attention, three drafter threads, SIGKILL between two saves and SIGTERM."""
    out = tmp_path / "run"
    argv = flags(threads=3, steps=7, out=out, save_every=2)
    killed = signalled(signal.SIGKILL, 3, argv)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.read(out).step == 2
    assert [line["step"] for line in lines(out)] == [1, 2]  # the third is reported, then written

    told = signalled(signal.SIGTERM, 5, [*argv, "--resume"])
    assert told.returncode == -signal.SIGTERM, told.stderr
    assert told.stdout == ""
    assert told.stderr.splitlines()[-1] == (
        f"dflash_min.train: stopped by SIGTERM after step 5 of 7; saved {out}/checkpoints/"
        f"step-00000005; go on with: python -m dflash_min.train {' '.join(argv)} --resume"
    )
    train.main([*argv, "--resume"])
    assert capsys.readouterr().out.startswith("trained 2 steps in ")

    whole = small(SaveConfig(out=tmp_path / "whole"), threads=3, steps=7)
    whole.run(ignore)
    assert lines(out) == lines(tmp_path / "whole")
    ends = [checkpoint.read(path) for path in (out, tmp_path / "whole")]
    assert [end.step for end in ends] == [7, 7]
    assert bits(ends[0].weights) == bits(ends[1].weights) == state(whole.replicas[2].drafter)
    assert bits(ends[0].optimizer()) == bits(ends[1].optimizer())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 1e-3}, "--resume: the checkpoint has lr 0.005, this run 0.001"),
        ({"data": "other.txt"}, "--resume: the checkpoint has text "),
    ],
)
def test_another_run_is_not_resumed(changed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("some text to learn from\n" * 40)
    Path("other.txt").write_text("Some text to learn from\n" * 40)
    settings = {**SETTINGS, "data": (Path("text.txt"),)}
    stopping_after(small_dense(SaveConfig(out=Path("run")), **settings), 1)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    capsys.readouterr()
    argv = {**settings, "data": "text.txt", "out": "run", **changed}
    with pytest.raises(SystemExit) as stop:
        train.main([*flags(**argv), "--resume"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"dflash_min.train: error: {message}")
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_target_that_differs_in_its_layers_only_is_another(tmp_path):
    """Fine-tuned, for example, with embedding and head left as they were."""
    config = small_dense(**SETTINGS).resolved.model
    target, other = Target(config, seed=1), Target(config, seed=1)
    last = max(config.taps)
    other.layers[last].mlp.down_proj.weight.data.mul_(1.01)
    for name, each in (("target", target), ("moved", target), ("other", other)):
        target_folder.save(each, tmp_path / name, {})
    settings = {**SETTINGS, "target": str(tmp_path / "target")}
    stopping_after(small_dense(SaveConfig(out=tmp_path / "run"), **settings), 1)
    again = SaveConfig(out=tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="these are digests of the target's weights"):
        small_dense(again, **{**settings, "target": str(tmp_path / "other")})
    moved = small_dense(again, **{**settings, "target": str(tmp_path / "moved")})
    assert moved.run(ignore).steps == 4


def test_what_was_read_to_go_on_from_is_let_go(tmp_path, monkeypatch):
    """The weights of a checkpoint would take their memory once more, for the whole run."""
    stopping_after(small_dense(SaveConfig(out=tmp_path), **SETTINGS), 1)
    read, kept = checkpoint.read_whole, []

    def remembered(path):
        found = read(path)
        kept.extend(weakref.ref(weight) for weight in found.weights.values())
        return found

    monkeypatch.setattr(checkpoint, "read_whole", remembered)
    trainer = small_dense(SaveConfig(out=tmp_path, resume=True), **SETTINGS)
    gc.collect()
    assert trainer.finished == 1
    assert kept
    assert [ref for ref in kept if ref() is not None] == []


@pytest.mark.parametrize("name", ["out", "save_every", "keep_checkpoints"])
def test_settings_of_saving_are_checked(name):
    value = {"out": None, "save_every": -1, "keep_checkpoints": 0}[name]
    save = SaveConfig(**{"out": Path("never made"), "resume": name == "out", name: value})
    with pytest.raises(UsageError, match="needs --out" if name == "out" else "must be at least"):
        small_dense(save)
    assert not Path("never made").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--out", "run", "--resume"], "nothing new is saved"),
        (["--out", "run", "--resume", "--no-resume"], "nothing is saved"),
        (["--out", "run"], "nothing is saved"),
    ],
)
def test_a_signal_while_the_models_are_built_denies_no_checkpoint(argv, said):
    line = train.Ending(argv).line("SIGTERM")
    assert line == f"dflash_min.train: stopped by SIGTERM before the first step; {said}"
