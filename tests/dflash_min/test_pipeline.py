"""Threads, queues, errors, and the gradient that all replicas share."""

from __future__ import annotations

import math
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields, replace

import pytest
import torch

from dflash_min import observe
from dflash_min.config import TrainConfig
from dflash_min.errors import Stopped
from dflash_min.optim import Average, lr_share
from dflash_min.pipeline import Channel, enter_thread
from dflash_min.replica import Batch, training_batch
from dflash_min.resolve import resolve

from .trainers import small_dense, state, workers


@pytest.fixture(autouse=True)
def _threads_end():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert workers() == []


def ignore(report):
    pass


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


def test_the_average_is_the_gradient_of_one_replica_with_the_summed_batch():
    trainer = small_dense(threads=3, batch_size=2)
    target = trainer.targets[0]
    batches = [training_batch(trainer.resolved, trainer.text, target, 1, r) for r in range(3)]
    # Shares of weight that differ widely: a mean of means would be another gradient.
    for rank, anchors in ((1, 5), (2, 1)):
        kept = batches[rank].keep_BN & (torch.arange(32) < anchors)
        batches[rank] = replace(batches[rank], keep_BN=kept)

    single = small_dense(threads=1).replicas[0]
    tensors = [each.name for each in fields(Batch) if each.name not in {"step", "tokens"}]
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in tensors}
    sums = single.forward(Batch(step=1, tokens=0, **joined))
    sums.loss.backward()

    average = Average(3)

    def work(rank):
        replica = trainer.replicas[rank]
        try:
            mine = replica.forward(batches[rank])
            mine.weighted_sum.backward()
            numbers = (float(mine.weight_sum), float(mine.weighted_sum.detach()))
            totals = average.gather(rank, replica.parameters, numbers)
            average.meet()
        except BaseException:
            average.abort()
            raise
        return totals

    with ThreadPoolExecutor(3) as threads:
        totals = list(threads.map(work, range(3)))
    assert totals[0] == totals[1] == totals[2]
    assert totals[0] == pytest.approx((float(sums.weight_sum), float(sums.weighted_sum.detach())))
    for one, *all_three in zip(
        single.parameters, *(replica.parameters for replica in trainer.replicas), strict=True
    ):
        for p in all_three:
            torch.testing.assert_close(p.grad, one.grad, rtol=1e-4, atol=1e-7)
            assert p.grad.equal(all_three[0].grad)


@pytest.mark.parametrize("layout", ["1+1", "2+3"])
def test_accumulated_gradients_are_those_of_one_batch_with_all_sequences(layout):
    trainer = small_dense(layout=layout, accumulate=3, steps=1, lr=0.0)
    seen, grads = [], []
    for rank, replica in enumerate(trainer.replicas):

        def forward(batch, rank=rank, inner=replica.forward):
            seen.append((rank, batch))
            return inner(batch)

        replica.forward = forward
        replica_step = trainer.optimizers[rank].step

        def step(number, weight, replica=replica, inner=replica_step):
            grads.append([p.grad.clone() for p in replica.parameters])
            inner(number, weight)

        trainer.optimizers[rank].step = step
    summary = trainer.run(ignore)

    batches = [batch for _, batch in sorted(seen, key=lambda pair: pair[0])]
    drafters = len(trainer.replicas)
    ids = [trainer.text.batch(number, 96, 1)[0] for number in range(3 * drafters)]
    # Each drafter has every batch whose number leaves its rank, and no other thread's.
    assert [batch.input_ids_BS.tolist() for batch in batches] == [
        ids[micro * drafters + rank].tolist() for rank in range(drafters) for micro in range(3)
    ]
    single = small_dense(threads=1).replicas[0]
    tensors = [each.name for each in fields(Batch) if each.name not in {"step", "tokens"}]
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in tensors}
    sums = single.forward(Batch(step=0, tokens=0, **joined))
    sums.loss.backward()
    assert summary.loss == pytest.approx(float(sums.detached().loss))
    assert summary.accept_len == pytest.approx(float(sums.accept_len))
    assert summary.tokens == 96 * 3 * drafters
    for of_one in grads:
        for mine, p in zip(of_one, single.parameters, strict=True):
            torch.testing.assert_close(mine, p.grad, rtol=1e-4, atol=1e-7)
            # Not by chance, in a run whose gradients all are about 0.
            assert p.grad.abs().max() > 1e-6


@pytest.mark.parametrize(("drafters", "accumulate"), [(1, 1), (3, 1), (1, 4), (3, 4)])
def test_every_batch_has_a_number_of_its_own(drafters, accumulate):
    resolved = resolve(TrainConfig(threads=drafters, accumulate=accumulate), gpus=0)
    places = [
        (step, rank, micro)
        for step in range(5)
        for micro in range(accumulate)
        for rank in range(drafters)
    ]
    assert [resolved.batch_number(*place) for place in places] == list(range(len(places)))
    assert [resolved.batch_place(number) for number in range(len(places))] == places


def test_a_step_without_a_label_leaves_weights_alone():
    trainer = small_dense(threads=1, steps=1)
    before = state(trainer.replicas[0].drafter)
    text = trainer.text.batch
    trainer.text.batch = lambda *args: (text(*args)[0], torch.zeros_like(text(*args)[1]))
    summary = trainer.run(ignore)
    assert math.isnan(summary.loss)
    assert math.isnan(summary.accept_len)
    assert state(trainer.replicas[0].drafter) == before


def test_replicas_stay_equal_and_no_layout_changes_what_is_learned():
    learned = []
    for layout, depth in (("1+3", 2), ("2+3", 1), ("5+3", 3)):
        trainer = small_dense(layout=layout, steps=4, queue_depth=depth)
        before = state(trainer.replicas[0].drafter)
        trainer.run(ignore)
        replicas = [state(replica.drafter) for replica in trainer.replicas]
        assert replicas[0] == replicas[1] == replicas[2] != before
        learned.append(replicas[0])
    assert learned[0] == learned[1] == learned[2]


def test_each_drafter_trains_on_its_own_batches():
    trainer = small_dense(layout="2+2", steps=3)
    seen = {}
    for rank, replica in enumerate(trainer.replicas):

        def forward(batch, rank=rank, inner=replica.forward):
            seen[batch.step, rank] = batch.input_ids_BS
            return inner(batch)

        replica.forward = forward
    trainer.run(ignore)
    lengths = (96, 128, 96)
    for (step, rank), ids in seen.items():
        assert ids.equal(trainer.text.batch(step * 2 + rank, lengths[step], 1)[0])
    assert len(seen) == 6


class BrokenError(Exception):
    pass


def failing(inner, error, when, meet=lambda: None):
    """Wrap a function so that it raises `error` where `when(its argument)` is true."""

    def wrapped(argument):
        if when(argument):
            meet()
            raise error
        return inner(argument)

    return wrapped


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
    error, calls = BrokenError("in a target"), []
    target = trainer.targets[0]
    count = lambda ids: calls.append(ids) or len(calls) > 3  # noqa: E731
    target.features = failing(target.features, error, count)
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
        replica.forward = failing(
            replica.forward, error, lambda batch: batch.step == 2, lambda: both.wait(60)
        )
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


def test_an_interrupt_stops_the_threads():
    trainer = small_dense(threads=2, steps=10_000)

    def interrupt(report):
        if report.step == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.run(interrupt)


def test_the_observer_sees_phases_on_the_main_thread_and_steps_on_the_drafters():
    seen = []

    class Recorder:
        def phase(self, name):
            seen.append((name, threading.current_thread().name))
            return nullcontext()

        def step(self, step, tokens, seconds):
            assert seconds > 0
            seen.append((threading.current_thread().name, step, tokens))

    observe.set_observer(Recorder())
    try:
        small_dense(threads=2, steps=2, batch_size=2, eval_batches=1).run(ignore)
    finally:
        observe.set_observer(None)
    main = threading.current_thread().name
    assert (seen[0], seen[-1]) == (("train", main), ("evaluate", main))
    assert sorted(seen[1:-1]) == [
        (f"drafter-{rank}", step, tokens)
        for rank in (0, 1)
        for step, tokens in ((0, 192), (1, 256))
    ]


def test_reports_are_sums_over_the_drafters():
    reports = []
    summary = small_dense(threads=2, steps=3).run(reports.append)
    assert [(report.step, report.tokens) for report in reports] == [(0, 192), (1, 256), (2, 192)]
    assert all(report.loss > 0 and report.accept_len >= 1 for report in reports)
    assert (summary.steps, summary.tokens) == (3, 640)
    assert (summary.first_loss, summary.loss) == (reports[0].loss, reports[-1].loss)
    assert summary.held_out_loss is None


def test_a_report_has_the_figures_of_the_step_over_all_drafters():
    trainer = small_dense(threads=2, steps=2, batch_size=2, lr_warmup=0.5)
    kept = [[], []]
    for replica, sums in zip(trainer.replicas, kept, strict=True):

        def forward(batch, sums=sums, inner=replica.forward):
            sums.append(inner(batch))
            return sums[-1]

        replica.forward = forward
    reports = []
    trainer.run(reports.append)
    for step, report in enumerate(reports):
        total = kept[0][step].detached() + kept[1][step].detached()
        assert report.loss == pytest.approx(float(total.loss))
        assert report.accept_len == pytest.approx(float(total.accept_len))
        assert report.accuracy == pytest.approx(float(total.accuracy))
        assert report.slot_accuracy == pytest.approx(total.slot_accuracy[1:].tolist())
        assert report.lr == 6e-4
        assert report.values().keys() == {
            "loss",
            "accept_len",
            "accuracy",
            "slot_accuracy",
            "lr",
            "tokens",
            "seconds",
        }


def test_weights_stay_as_the_step_left_them_while_it_is_reported():
    """All other drafters have begun the next step when the weights are looked at again."""
    trainer = small_dense(threads=3, steps=3)
    begun = threading.Semaphore(0)
    for replica in trainer.replicas[1:]:

        def forward(batch, inner=replica.forward):
            sums = inner(batch)
            begun.release()
            return sums

        replica.forward = forward

    def report(step):
        before = [state(replica.drafter) for replica in trainer.replicas]
        if step.step < 2:
            for _ in range(4 if step.step == 0 else 2):
                assert begun.acquire(timeout=60)
        assert [state(replica.drafter) for replica in trainer.replicas] == before

    assert trainer.run(report).steps == 3


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


def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing():
    shares = [lr_share(step, 100, 0.04) for step in range(100)]
    assert shares[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert shares[52] == pytest.approx(0.5)
    assert 0 < shares[-1] < 1e-3
    assert lr_share(0, 1, 0.0) == lr_share(0, 1, 0.04) == lr_share(0, 1, 1.0) == 1.0
