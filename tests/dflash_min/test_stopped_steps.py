"""A stop or a failure in the middle of a step: which step is saved, and who is left behind."""

from __future__ import annotations

import threading

import pytest

from dflash_min import pipeline, stopping, thread_group, train
from dflash_min.config import SaveConfig
from dflash_min.errors import NotFiniteError, Stopped
from dflash_min.gradients import Average
from dflash_min.pipeline import Pipeline
from dflash_min.saving import checkpoint
from dflash_min.updates import Updates

from .failures import BrokenError, Clock, dying_after, failing
from .saved_runs import SETTINGS, everything, lines, stopping_after
from .trainers import flags, ignore, others_end, small_dense, workers

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (pipeline, thread_group):
        monkeypatch.setattr(module, "time", made)
    return made


def hanging_in_step_3(replica, first):
    """Let a replica call `first` in step 3 and wait there; returns what lets it go on."""
    forward, goes_on = replica.forward, threading.Event()

    def hangs(batch):
        if batch.step + 1 == 3:
            first()
            assert goes_on.wait(60)
        return forward(batch)

    replica.forward = hangs
    return goes_on


def one_fails_and_one_hangs(trainer, error, then=ignore):
    """In step 3, drafter-0 raises when drafter-1 does not go on, which first calls `then`.

    Returns what lets it go on.
    """
    first, second = trainer.replicas[:2]
    hangs = threading.Event()
    first.forward = failing(first.forward, error, lambda batch: batch.step + 1 == 3, hangs)
    return hanging_in_step_3(second, lambda: (hangs.set(), then()))


def updated_in_step_2(optimizer):
    """Return what is set once a replica's weights are those after step 2."""
    step, updated = optimizer.step, threading.Event()

    def noted(number, weight):
        step(number, weight)
        if number + 1 == 2:
            updated.set()

    optimizer.step = noted
    return updated


def end(thread_name, goes_on):
    """Let a thread that was left behind go on and end; the others do without."""
    others_end(thread_name)
    assert workers() == [thread_name]
    goes_on.set()
    others_end()


def test_a_step_that_does_not_end_is_left_behind_and_the_last_whole_one_saved(tmp_path, clock):
    before = small_dense(SaveConfig(out=tmp_path / "before"), **SETTINGS)
    stopping_after(before, 2)
    trainer = small_dense(SaveConfig(out=tmp_path / "run"), **SETTINGS)
    hangs = threading.Event()

    def hang():
        hangs.set()
        others_end()
        clock.advance(trainer.grace_s)

    goes_on = hanging_in_step_3(trainer.replicas[1], hang)

    def report(step):
        if step.step + 1 == 2:
            assert hangs.wait(60)
            trainer.stop()

    trainer.run(report)
    assert workers() == ["drafter-1"]
    assert trainer.finished == checkpoint.read(tmp_path / "run").step == 2
    end("drafter-1", goes_on)
    assert everything(trainer) == everything(before)
    assert lines(tmp_path / "run") == lines(tmp_path / "before")


def test_a_stop_while_all_wait_for_one_saves_the_step_before(tmp_path):
    """The stop comes in the middle of a step that cannot end: drafter-0 never sees it."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s = 0.1
    forward, begun = trainer.replicas[0].forward, threading.Event()

    def first(batch):
        if batch.step + 1 == 3:  # so that all of step 2 is behind drafter-0
            begun.set()
        return forward(batch)

    trainer.replicas[0].forward = first
    goes_on = hanging_in_step_3(trainer.replicas[1], lambda: (begun.wait(60), trainer.stop()))
    trainer.run(ignore)
    end("drafter-1", goes_on)
    assert trainer.finished == checkpoint.read(tmp_path).step == 2
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_failed_run_does_not_wait_for_ever_for_a_thread_that_is_stuck(tmp_path, clock):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    error = BrokenError("out of memory")
    goes_on = one_fails_and_one_hangs(
        trainer, error, lambda: (others_end(), clock.advance(trainer.patience_s))
    )
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


def test_the_command_leaves_a_stuck_thread_behind(tmp_path, monkeypatch, capsys, clock):
    """As if the interpreter did not wait for it; see test_stopping for what then ends it."""
    build, going_on, left = train._run, [], []

    def run(trainer, ending):
        for replica in trainer.replicas:
            replica.forward = replica.forward_dense
        error = NotFiniteError("made up")
        then = lambda: (others_end(), clock.advance(trainer.patience_s))  # noqa: E731
        going_on.append(one_fails_and_one_hangs(trainer, error, then))
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
    """An update that does not end gets what the step has left of the time, not as much again.

    Whoever waits for it ends, and does not report the step.
    """
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
    reported = []
    trainer.run(lambda report: reported.append(report.step + 1))
    end("drafter-1", goes_on)
    assert len(timeouts) == 2
    assert timeouts[0] <= 0.3 * trainer.grace_s
    assert timeouts[1] == 0
    assert reported == [1, 2]
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    ending = train.Ending([])
    ending.trainer = trainer
    assert ending.saved() == (
        "nothing is saved: an update of the weights was under way, and did not end in time"
    )
    monkeypatch.setattr(type(trainer), "newest", tmp_path / "earlier")
    assert ending.saved().startswith(
        f"saved {tmp_path / 'earlier'}; nothing later is: an update of the weights was under way"
    )


def test_a_stop_waits_for_a_checkpoint_that_is_being_written_and_says_so(tmp_path, monkeypatch):
    trainer = small_dense(SaveConfig(out=tmp_path, save_every=2), **SETTINGS)
    trainer.grace_s, said, goes_on = 0.1, [], threading.Event()
    write = checkpoint.write

    def slow(*args, **kwargs):
        trainer.stop()
        assert goes_on.wait(60)
        return write(*args, **kwargs)

    def say(line):
        said.append(line)
        goes_on.set()

    monkeypatch.setattr(checkpoint, "write", slow)
    trainer.run(ignore, say=say)
    others_end()
    assert said == ["a checkpoint is still being written; Ctrl-C ends the run without it"]
    assert trainer.newest == checkpoint.latest(tmp_path)
    assert checkpoint.read(tmp_path).step == 2


def test_a_step_that_ends_after_its_meeting_is_broken_off_is_reported_and_saved(
    tmp_path, monkeypatch
):
    """A stop comes in drafter-1's update, which ends when drafter-0 has given up waiting."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s = 60.0
    step, abort, aborted = trainer.optimizers[1].step, Average.abort, threading.Event()

    def late(number, weight):
        if number + 1 == 3:
            trainer.stop()
            assert aborted.wait(60)
            others_end("drafter-1")
        step(number, weight)

    trainer.optimizers[1].step = late
    monkeypatch.setattr(Average, "abort", lambda self: (abort(self), aborted.set()))
    # The meeting is broken off soon, and nobody left behind soon.
    monkeypatch.setattr(thread_group, "_UNHALTED_SHARE", 0.005)
    monkeypatch.setattr(pipeline, "_WAKING_SHARE", 0.994)
    reported = []
    trainer.run(lambda report: reported.append(report.step + 1))
    assert reported == [1, 2, 3]
    assert trainer.finished == checkpoint.read(tmp_path).step == 3
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_step_that_ends_while_all_stop_is_reported_and_saved(tmp_path, monkeypatch):
    """A target dies when drafter-0 has ended a step and drafter-1 has not come to the meeting."""
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    trainer.grace_s = 60.0
    aborted, meet, abort = threading.Event(), Average.meet, Average.abort
    updated = updated_in_step_2(trainer.optimizers[1])
    dying_after(9, trainer.targets[0], updated)

    def meets_late(self):
        if updated.is_set() and threading.current_thread().name == "drafter-1":
            assert aborted.wait(60)
        meet(self)

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
    trainer.grace_s = 60.0
    stopping, aborted, meetings = threading.Event(), threading.Event(), []
    meet, abort, hold = Average.meet, Average.abort, Updates.hold
    # Batches of two steps: a third could begin before the stop sees that the second has ended.
    dying_after(6, trainer.targets[0], updated_in_step_2(trainer.optimizers[0]))

    def wakes_late(self):
        meet(self)
        if threading.current_thread().name == "drafter-1":
            meetings.append(self)
            if len(meetings) == 3:  # two in step 1, and the first of step 2
                assert stopping.wait(60)
                if aborted.is_set():
                    raise Stopped

    monkeypatch.setattr(Average, "meet", wakes_late)
    monkeypatch.setattr(Average, "abort", lambda self: (aborted.set(), stopping.set(), abort(self)))
    monkeypatch.setattr(
        Updates, "hold", lambda self, timeout: (stopping.set(), hold(self, timeout))[1]
    )
    with pytest.raises(ExceptionGroup):
        trainer.run(ignore)
    assert trainer.finished == checkpoint.read(tmp_path).step == 2


def test_a_stop_before_training_has_nothing_to_wait_for(tmp_path, monkeypatch):
    trainer = small_dense(SaveConfig(out=tmp_path), **SETTINGS)
    asked = []
    monkeypatch.setattr("dflash_min.trainer.warm_up", lambda *args: asked.append(trainer.stop()))
    monkeypatch.setattr(Pipeline, "run", lambda self: asked.append(trainer.stop()))
    trainer.run(ignore)
    assert asked == [False, True]
