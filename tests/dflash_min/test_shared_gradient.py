"""What is learned: the gradient that all replicas share, whatever the layout."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import pytest
import torch

from dflash_min.batches import Batch, training_batch
from dflash_min.config import TrainConfig
from dflash_min.gradients import Average
from dflash_min.resolve import resolve

from .trainers import ignore, small_dense, state

pytestmark = pytest.mark.usefixtures("threads_end")


def one_replica_with(batches):
    """Return a replica, with the gradient of all batches as one, and the sums of its loss."""
    replica = small_dense(threads=1).replicas[0]
    tensors = [
        each.name for each in fields(Batch) if each.name not in {"step", "tokens", "arrived"}
    ]
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in tensors}
    sums = replica.forward(Batch(step=0, tokens=0, **joined))
    sums.loss.backward()
    return replica, sums


def test_the_average_is_the_gradient_of_one_replica_with_the_summed_batch():
    trainer = small_dense(threads=3, batch_size=2)
    target = trainer.targets[0]
    batches = [training_batch(trainer.resolved, trainer.text, target, 1, r) for r in range(3)]
    # Shares of weight that differ widely: a mean of means would be another gradient.
    for rank, anchors in ((1, 5), (2, 1)):
        kept = batches[rank].keep_BN & (torch.arange(32) < anchors)
        batches[rank] = replace(batches[rank], keep_BN=kept)

    single, sums = one_replica_with(batches)

    average = Average([replica.parameters for replica in trainer.replicas])

    def work(rank):
        replica = trainer.replicas[rank]
        try:
            mine = replica.forward(batches[rank])
            mine.weighted_sum.backward()
            numbers = (float(mine.weight_sum), float(mine.weighted_sum.detach()))
            totals = average.gather(rank, numbers)
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
    single, sums = one_replica_with(batches)
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


def test_replicas_stay_equal_and_no_layout_changes_what_is_learned(monkeypatch):
    # Sums depend on how many cores an operation has, which on a machine of many the layout decides.
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
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
