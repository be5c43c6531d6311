"""An interrupted run that goes on is, bit for bit, the run that was never interrupted."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import pytest
import torch

import dflash_min
from dflash_min import stopping, train
from dflash_min.config import SaveConfig
from dflash_min.errors import NotFiniteError, SaveError, Stopped, UsageError
from dflash_min.optim import Average
from dflash_min.pipeline import Pipeline
from dflash_min.saving import checkpoint, metrics
from dflash_min.targets import folder as target_folder
from dflash_min.targets.builtin import Target
from dflash_min.updates import Updates

from . import trainers
from .trainers import SIZES, small, small_dense, state, workers

# Dynamo reads .grad of every input and hides torch's warning about it by the way warnings are
# shown, which comes too late where warnings are errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.usefixtures("_threads_end"),
]

ROOT = str(Path(dflash_min.__file__).parents[1])


@pytest.fixture
def _threads_end():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert workers() == []


def ignore(report):
    pass


def everything(trainer):
    """All that training changes, on each replica, as bits."""
    return [
        (state(replica.drafter), bits(optimizer.state_dict()))
        for replica, optimizer in zip(trainer.replicas, trainer.optimizers, strict=True)
    ]


def bits(value):
    if isinstance(value, torch.Tensor):
        return trainers.bits(value)
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    return [bits(each) for each in value] if isinstance(value, list) else value


def lines(out):
    """All of metrics.jsonl but the times."""
    found = metrics.read(out / metrics.FILE)
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def stopping_after(trainer, step):
    """Run, and ask for a stop in the report of a step (from 1)."""

    def report(each):
        if each.step + 1 == step:
            trainer.stop()

    return trainer.run(report)


SETTINGS = {"threads": 3, "steps": 5, "lr": 5e-3}
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


def flags(**settings):
    argv = []
    for name, value in {**SIZES, **settings}.items():
        words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        argv += [f"--{name.replace('_', '-')}", words]
    return argv


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


def test_a_damaged_line_of_metrics_is_named(tmp_path, capsys):
    stopping_after(small_dense(SaveConfig(out=tmp_path), **SETTINGS), 3)
    path = tmp_path / metrics.FILE
    first, _, third = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0" * 20, b"{}", b'{"step": 2, "kind": "\xff"}'):
        path.write_bytes(first + damaged + b"\n" + third)
        before = path.read_bytes()
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            train.main([*flags(**SETTINGS, warmup="none", out=tmp_path), "--resume"])
        err = capsys.readouterr().err
        assert stop.value.code == 2
        assert err.startswith(f"dflash_min.train: error: {path}:2: a damaged line (")
        assert err.count("\n") == 1
        assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["out", "save_every", "keep_checkpoints"])
def test_settings_of_saving_are_checked(name):
    value = {"out": None, "save_every": -1, "keep_checkpoints": 0}[name]
    save = SaveConfig(**{"out": Path("never made"), "resume": name == "out", name: value})
    with pytest.raises(UsageError, match="needs --out" if name == "out" else "must be at least"):
        small_dense(save)
    assert not Path("never made").exists()


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


class BrokenError(Exception):
    pass


def test_a_dead_target_loses_no_step(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    target, features, calls = trainer.targets[0], trainer.targets[0].features, []

    def dies(ids):
        calls.append(ids)
        if len(calls) > 9:
            raise BrokenError
        return features(ids)

    target.features = dies
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
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=2), **SETTINGS)

    def fill(report):
        if report.step + 1 == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))

    try:
        with pytest.raises(ExceptionGroup) as caught:
            trainer.run(fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
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
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=2), **SETTINGS)
    path = tmp_path / metrics.FILE

    def fill(report):
        if report.step + 1 == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))

    try:
        with pytest.raises(ExceptionGroup) as caught:
            trainer.run(fill)
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == path.stat().st_size + 10
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
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


def test_a_step_that_does_not_end_is_left_behind_and_the_last_whole_one_saved(tmp_path):
    before = small_dense(SaveConfig(out=tmp_path / "before"), **SETTINGS)
    stopping_after(before, 2)
    trainer = small_dense(SaveConfig(out=tmp_path / "run"), **SETTINGS)
    trainer.grace_s = 0.1
    hangs, goes_on = threading.Event(), threading.Event()
    replica, forward = trainer.replicas[1], trainer.replicas[1].forward

    def compiles_for_ever(batch):
        if batch.step + 1 == 3:
            hangs.set()
            assert goes_on.wait(60)
        return forward(batch)

    replica.forward = compiles_for_ever

    def report(step):
        if step.step + 1 == 2:
            assert hangs.wait(60)
            trainer.stop()

    trainer.run(report)
    assert workers() == ["drafter-1"]
    assert trainer.finished == checkpoint.read(tmp_path / "run").step == 2
    (left,) = (each for each in threading.enumerate() if each.name == "drafter-1")
    goes_on.set()
    left.join()
    assert everything(trainer) == everything(before)
    assert lines(tmp_path / "run") == lines(tmp_path / "before")


def test_a_stop_while_all_wait_for_one_saves_the_step_before(tmp_path):
    """The stop comes in the middle of a step that cannot end: drafter-0 never sees it."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s = 0.1
    goes_on = threading.Event()
    replica, forward = trainer.replicas[1], trainer.replicas[1].forward

    def hangs(batch):
        if batch.step + 1 == 3:
            trainer.stop()
            assert goes_on.wait(60)
        return forward(batch)

    replica.forward = hangs
    trainer.run(ignore)
    (left,) = (each for each in threading.enumerate() if each.name == "drafter-1")
    goes_on.set()
    left.join()
    assert trainer.finished == checkpoint.read(tmp_path).step == 2
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def one_fails_and_one_hangs(trainer, error):
    """In step 3, drafter-0 raises when drafter-1 does not go on; returns what lets it go on."""
    hangs, goes_on = threading.Event(), threading.Event()
    first, second = (replica.forward for replica in trainer.replicas[:2])

    def fails(batch):
        if batch.step + 1 == 3:
            assert hangs.wait(60)
            raise error
        return first(batch)

    def compiles_for_ever(batch):
        if batch.step + 1 == 3:
            hangs.set()
            assert goes_on.wait(60)
        return second(batch)

    trainer.replicas[0].forward, trainer.replicas[1].forward = fails, compiles_for_ever
    return goes_on


def end(thread_name, goes_on):
    """Let a thread that was left behind go on and end."""
    (left,) = (each for each in threading.enumerate() if each.name == thread_name)
    goes_on.set()
    left.join()


def test_a_failed_run_does_not_wait_for_ever_for_a_thread_that_is_stuck(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.patience_s = 0.1
    error = BrokenError("out of memory")
    goes_on = one_fails_and_one_hangs(trainer, error)
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    assert caught.value.exceptions == (error,)
    assert caught.value.__notes__ == ["left behind, since they did not end in time: drafter-1"]
    assert trainer.left_behind == workers() == ["drafter-1"]
    end("drafter-1", goes_on)
    assert trainer.left_behind == []
    assert trainer.finished == checkpoint.read(tmp_path).step == 2


def test_a_stop_ends_a_run_that_has_failed_already(tmp_path, monkeypatch):
    """Long before the patience with a thread that may yet tell of an error is at its end."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s, trainer.patience_s = 0.1, 10_000
    goes_on = one_fails_and_one_hangs(trainer, BrokenError())
    abort = Average.abort
    monkeypatch.setattr(Average, "abort", lambda self: (abort(self), trainer.stop()))
    with pytest.raises(ExceptionGroup):
        trainer.run(ignore)
    end("drafter-1", goes_on)
    assert checkpoint.read(tmp_path).step == 2


def test_the_command_leaves_a_stuck_thread_behind(tmp_path, monkeypatch, capsys):
    """As if the interpreter did not wait for it; see test_stopping for what then ends it."""
    build, going_on, left = train._run, [], []

    def run(trainer, ending):
        for replica in trainer.replicas:
            replica.forward = replica.forward_dense
        trainer.patience_s = 0.1
        going_on.append(one_fails_and_one_hangs(trainer, NotFiniteError("made up")))
        return build(trainer, ending)

    def leave(error, number):
        left.append((type(error), error.code, number))
        raise error

    monkeypatch.setattr(train, "_run", run)
    monkeypatch.setattr(stopping, "leave_threads", leave)
    with pytest.raises(SystemExit):
        train.main(flags(threads=2, warmup="none", out=tmp_path))
    end("drafter-1", *going_on)
    assert left == [(SystemExit, 1, None)]
    *_, first, second, third = capsys.readouterr().err.splitlines()
    assert first == "dflash_min.train: error: made up"
    assert second == (
        "dflash_min.train: error: left behind, since they did not end in time: drafter-1"
    )
    assert third.startswith(f"dflash_min.train: saved {tmp_path}/checkpoints/step-00000002; ")


def test_a_stop_takes_its_time_once(tmp_path, monkeypatch):
    """An update that does not end gets what the step has left of the time, not as much again."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s = 0.5
    step, hold, goes_on, timeouts = trainer.optimizers[1].step, Updates.hold, threading.Event(), []

    def hangs(number, weight):
        if number + 1 == 3:
            trainer.stop()
            assert goes_on.wait(60)
        step(number, weight)

    def timed(self, timeout):
        timeouts.append(timeout)
        return hold(self, timeout)

    trainer.optimizers[1].step = hangs
    monkeypatch.setattr(Updates, "hold", timed)
    trainer.run(ignore)
    end("drafter-1", goes_on)
    assert len(timeouts) == 2
    assert timeouts[0] <= 0.3 * trainer.grace_s
    assert timeouts[1] == 0


def test_a_step_that_ends_while_all_stop_is_reported_and_saved(tmp_path, monkeypatch):
    """A target dies when drafter-0 has ended a step and drafter-1 has not come to the meeting."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    updated, aborted = threading.Event(), threading.Event()
    meet, abort = Average.meet, Average.abort
    step, features = trainer.optimizers[1].step, trainer.targets[0].features
    calls = []

    def dies(ids):
        calls.append(ids)
        if len(calls) > 9:
            assert updated.wait(60)
            raise BrokenError
        return features(ids)

    def second_update(number, weight):
        step(number, weight)
        if number + 1 == 2:
            updated.set()

    def meets_late(self):
        if updated.is_set() and threading.current_thread().name == "drafter-1":
            assert aborted.wait(60)
        meet(self)

    trainer.targets[0].features = dies
    trainer.optimizers[1].step = second_update
    monkeypatch.setattr(Average, "meet", meets_late)
    monkeypatch.setattr(Average, "abort", lambda self: (abort(self), aborted.set()))
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    assert [type(error) for error in caught.value.exceptions] == [BrokenError]
    assert trainer.finished == checkpoint.read(tmp_path).step == 2
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_no_replica_is_left_a_step_behind_by_a_stop(tmp_path, monkeypatch):
    """Drafter-1 is the last to wake from the meeting of step 2, and a target dies meanwhile."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    updated, stopping, aborted = threading.Event(), threading.Event(), threading.Event()
    meet, abort, hold = Average.meet, Average.abort, Updates.hold
    step, features = trainer.optimizers[0].step, trainer.targets[0].features
    calls, meetings = [], []

    def dies(ids):
        calls.append(ids)
        if len(calls) > 9:
            assert updated.wait(60)
            raise BrokenError
        return features(ids)

    def update(number, weight):
        step(number, weight)
        if number + 1 == 2:
            updated.set()

    def wakes_late(self):
        meet(self)
        if threading.current_thread().name == "drafter-1":
            meetings.append(self)
            if len(meetings) == 3:  # two in step 1, and the first of step 2
                assert stopping.wait(60)
                if aborted.is_set():
                    raise Stopped

    trainer.targets[0].features = dies
    trainer.optimizers[0].step = update
    monkeypatch.setattr(Average, "meet", wakes_late)
    monkeypatch.setattr(Average, "abort", lambda self: (aborted.set(), stopping.set(), abort(self)))
    monkeypatch.setattr(
        Updates, "hold", lambda self, timeout: (stopping.set(), hold(self, timeout))[1]
    )
    with pytest.raises(ExceptionGroup):
        trainer.run(ignore)
    assert trainer.finished == checkpoint.read(tmp_path).step == 2


def test_lines_after_the_checkpoint_and_a_cut_one_are_dropped(tmp_path):
    path = tmp_path / metrics.FILE
    written = metrics.Metrics(path)
    for step in (1, 2, 3):
        written.write(step, "train", {"loss": float("nan"), "slot_accuracy": (0.5, float("nan"))})
    written.write(2, "eval", {"loss": 1.5})
    written.close()
    path.write_bytes(path.read_bytes() + b'{"step":3,"ki')
    assert [line["step"] for line in metrics.read(path)] == [1, 2, 3, 2]
    metrics.rewind(path, 2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "kind": "train", "loss": None, "slot_accuracy": [0.5, None]},
        {"step": 2, "kind": "train", "loss": None, "slot_accuracy": [0.5, None]},
        {"step": 2, "kind": "eval", "loss": 1.5},
    ]


def test_a_stop_before_training_has_nothing_to_wait_for(tmp_path, monkeypatch):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    asked = []
    monkeypatch.setattr("dflash_min.trainer.warm_up", lambda *args: asked.append(trainer.stop()))
    monkeypatch.setattr(Pipeline, "run", lambda self: asked.append(trainer.stop()))
    trainer.run(ignore)
    assert asked == [False, True]


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
