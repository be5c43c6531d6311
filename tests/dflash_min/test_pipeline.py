"""The threads of a run: their queues, their devices, and how an error in one ends all."""

from __future__ import annotations

import queue
import signal
import threading
from types import SimpleNamespace

import pytest
import torch

from dflash_min import pipeline, thread_group
from dflash_min.channel import Channel
from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.errors import Stopped
from dflash_min.pipeline import Pipeline, enter_thread
from dflash_min.resolve import resolve
from dflash_min.saving import checkpoint
from dflash_min.step_report import step_numbers
from dflash_min.updates import Updates

from .failures import BrokenError, dying_after, failing
from .trainers import ignore, small_dense

pytestmark = pytest.mark.usefixtures("threads_end")


def test_a_channel_keeps_order_and_never_holds_more_than_its_depth():
    channel = Channel(depth=2)
    put, lock, backlog = [], threading.Lock(), []

    def produce(index):
        for item in range(50):
            channel.put(item)
            with lock:
                put.append(item)

    producer = threading.Thread(target=produce, args=(0,))
    producer.start()
    got = []
    for _ in range(50):
        got.append(channel.get())
        with lock:
            backlog.append(len(put) - len(got))
    producer.join()
    assert got == list(range(50))
    assert max(backlog) <= 2


class WouldWaitError(Exception):
    """Raised instead of waiting for another thread."""


class Impatient(Channel):
    """Never waits."""

    def _wait_for(self, ready):
        if not ready():
            raise WouldWaitError


@pytest.mark.parametrize("depth", [2, 3])
def test_what_was_taken_keeps_its_place_until_it_is_released(depth):
    channel = Impatient(depth)
    for item in range(depth):
        channel.put(item)
    assert channel.get() == 0
    with pytest.raises(WouldWaitError):
        channel.put(depth)
    channel.release()
    channel.put(depth)
    assert [channel.get() for _ in range(depth)] == list(range(1, depth + 1))


def test_what_was_taken_keeps_no_place_in_an_empty_queue():
    channel = Impatient(depth=1)
    for item in range(3):
        channel.put(item)
        assert channel.get() == item


def test_asking_for_the_next_gives_up_the_place():
    channel = Impatient(depth=2)
    for item in range(2):
        channel.put(item)
    assert [channel.get(), channel.get()] == [0, 1]
    channel.put(2)
    with pytest.raises(WouldWaitError):
        channel.put(3)
    assert channel.get() == 2
    with pytest.raises(WouldWaitError):
        channel.get()
    channel.put(3)
    channel.put(4)


def test_a_release_wakes_who_waits_for_room():
    """Which looks for room, waits, and looks again when it is told to."""
    channel, looked = Channel(depth=2), threading.Semaphore(0)
    has_room = channel._has_room

    def looks():
        looked.release()
        return has_room()

    channel._has_room = looks
    for item in range(2):
        channel.put(item)
        assert looked.acquire(timeout=60)
    assert channel.get() == 0
    thread = threading.Thread(target=channel.put, args=(2,), daemon=True)
    thread.start()
    assert looked.acquire(timeout=60)  # it holds the lock that a release needs, until it waits
    channel.release()
    assert looked.acquire(timeout=60), "nobody woke it"
    thread.join(60)
    assert [channel.get(), channel.get()] == [1, 2]


def test_targets_make_the_next_batch_when_a_drafter_has_given_its_device_the_backward(monkeypatch):
    trainer = small_dense(threads=1, steps=4)
    seen, original = [], Channel.release
    trainer.replicas[0].parameters[0].register_hook(lambda _: seen.append("backward"))

    def release(channel):
        seen.append("room")
        original(channel)

    def numbers(*args):
        seen.append("numbers")
        return step_numbers(*args)

    monkeypatch.setattr(Channel, "release", release)
    monkeypatch.setattr(pipeline, "step_numbers", numbers)
    trainer.run(ignore)
    assert seen == ["backward", "room", "numbers"] * 4


@pytest.mark.parametrize("wait", ["put", "get"])
def test_stopping_a_channel_ends_present_and_future_waits(wait):
    channel = Channel(depth=1)
    if wait == "put":
        channel.put(0)
    ended = []

    def work(index):
        try:
            channel.put(1) if wait == "put" else channel.get()
        except Stopped:
            ended.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    channel.stop()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [0, 1, 2]
    with pytest.raises(Stopped):
        channel.get()


def test_an_error_in_a_drafter_stops_all_and_comes_out_as_itself():
    trainer = small_dense(layout="2+3", steps=10_000)
    error = BrokenError("in step 1")
    replica = trainer.replicas[1]
    replica.forward = failing(replica.forward, error, lambda batch: batch.step == 1)
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    assert caught.value.message == "1 thread failed"
    assert len(caught.value.exceptions) == 1
    assert caught.value.exceptions[0] is error
    assert error.__notes__ == ["raised in thread drafter-1"]
    assert error.__traceback__ is not None


def test_an_error_in_a_target_stops_all():
    trainer = small_dense(layout="2+2", steps=10_000)
    error = dying_after(3, trainer.targets[0])
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(ignore)
    # Both threads share the target, and either or both may have come by.
    assert {id(each) for each in caught.value.exceptions} == {id(error)}
    assert error.__notes__[0].startswith("raised in thread target-")


def test_the_errors_of_all_threads_are_reported():
    trainer = small_dense(layout="1+3", steps=10_000)
    errors = [BrokenError("first"), BrokenError("second")]
    both = threading.Barrier(2)
    for replica, error in zip(trainer.replicas[:2], errors, strict=True):
        replica.forward = failing(replica.forward, error, lambda batch: batch.step == 2, both)
    with pytest.raises(ExceptionGroup, match="2 threads failed") as caught:
        trainer.run(ignore)
    assert {id(each) for each in caught.value.exceptions} == {id(error) for error in errors}


def test_an_error_of_the_report_is_reported_too():
    trainer = small_dense(threads=2, steps=10_000)
    error = BrokenPipeError("stdout is gone")
    with pytest.raises(ExceptionGroup) as caught:
        trainer.run(failing(ignore, error, lambda report: report.step == 1))
    assert caught.value.exceptions == (error,)


def test_a_thread_that_wants_to_exit_is_no_ordinary_error():
    trainer = small_dense(threads=2, steps=10_000)
    wish = SystemExit(3)
    replica = trainer.replicas[0]
    replica.forward = failing(replica.forward, wish, lambda batch: batch.step == 1)
    with pytest.raises(BaseExceptionGroup) as caught:
        trainer.run(ignore)
    assert not isinstance(caught.value, ExceptionGroup)
    assert caught.value.exceptions == (wish,)


def test_an_interrupt_stops_the_threads_and_the_steps_that_are_finished_are_saved(tmp_path):
    trainer = small_dense(SaveConfig(out=tmp_path / "run"), threads=2, steps=10_000)
    told = []

    def interrupt(report):
        told.append(report.step)
        if report.step == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.run(interrupt)
    done = trainer._pipeline.finished_steps()
    assert told == list(range(done))
    assert checkpoint.read(tmp_path / "run").record.step == done


def test_what_threads_had_raised_is_told_with_what_keeps_one_from_starting(monkeypatch):
    start, failed = threading.Thread.start, threading.Event()

    def starting(thread):
        if thread.name == "drafter-1":
            assert failed.wait(60)
            raise RuntimeError("can't start new thread")
        start(thread)

    trainer = small_dense(threads=2, steps=3)
    error = dying_after(0, trainer.targets[0])
    halt = Pipeline._halt
    monkeypatch.setattr(Pipeline, "_halt", lambda self, until: (failed.set(), halt(self, until)))
    monkeypatch.setattr(threading.Thread, "start", starting)
    with pytest.raises(RuntimeError, match="can't start") as raised:
        trainer.run(ignore)
    assert raised.value.__cause__.exceptions == (error,)


class Deaf(queue.SimpleQueue):
    """Signals do not end its waits, as one does not that comes right before a wait begins."""

    def get(self, timeout):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().get(timeout=timeout)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def test_an_interrupt_that_does_not_wake_the_main_thread_stops_the_threads_too(monkeypatch):
    monkeypatch.setattr(thread_group, "queue", SimpleNamespace(SimpleQueue=Deaf, Empty=queue.Empty))
    hold, seen = Updates.hold, threading.Event()
    monkeypatch.setattr(Updates, "hold", lambda self, timeout: (seen.set(), hold(self, timeout))[1])
    trainer, in_time = small_dense(threads=2, steps=4), []

    def interrupt(report):
        if report.step == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            in_time.append(seen.wait(60))

    with pytest.raises(KeyboardInterrupt):
        trainer.run(interrupt)
    assert in_time == [True]


def test_a_thread_sets_its_device_and_its_share_of_the_cores(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(13))
    enter_thread(torch.device("cuda:1"), resolve(TrainConfig(), gpus=2))
    assert devices == [torch.device("cuda:1")]
    before = torch.get_num_threads()
    try:
        enter_thread(torch.device("cpu"), resolve(TrainConfig(layout="1+3"), gpus=0))
        assert torch.get_num_threads() == 3
        enter_thread(torch.device("cpu"), resolve(TrainConfig(layout="9+9"), gpus=0))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
