"""Sums of gradients: over replicas, and over the batches of a step."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import Parameter

from dflash_min.gradients import Accumulator, Average

from .trainers import small_dense

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def gathered(gradients: list[torch.Tensor], *, mean: bool) -> list[torch.Tensor]:
    replicas = [Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    average = Average([[p] for p in replicas], mean=mean)

    def work(rank: int) -> torch.Tensor:
        replicas[rank].grad = gradients[rank]
        average.gather(rank, (2.0,))
        average.meet()
        return replicas[rank].grad

    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(work, range(len(replicas))))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_of_bfloat16_gradients_are_rounded_once(count) -> None:
    generator = torch.Generator().manual_seed(3)
    gradients = [torch.randn(64, generator=generator).bfloat16() for _ in range(count)]
    before = [gradient.clone() for gradient in gradients]
    exact = torch.stack(gradients).float().sum(0).bfloat16()
    for total in gathered(gradients, mean=False):
        assert torch.equal(total, exact)
    assert all(map(torch.equal, gradients, before))


def test_the_mean_divides_by_the_weight_of_all() -> None:
    one, two = torch.full((2,), 3.0), torch.full((2,), 5.0)
    assert [total.tolist() for total in gathered([one, two], mean=True)] == [[2.0, 2.0]] * 2


def test_the_only_replicas_gradient_is_not_copied() -> None:
    gradient = torch.ones(3).bfloat16()
    (total,) = gathered([gradient], mean=False)
    assert total.data_ptr() == gradient.data_ptr()


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_are_let_go_once_all_replicas_have_read_them(count) -> None:
    replicas = [Parameter(torch.zeros(8)) for _ in range(count)]
    average = Average([[p] for p in replicas])
    alive: list[weakref.ref[torch.Tensor]] = []
    left = []

    def work(rank: int) -> None:
        replicas[rank].grad = torch.ones(8)
        alive.append(weakref.ref(replicas[rank].grad))
        average.gather(rank, (1.0,))
        replicas[rank].grad = None  # as an optimiser does it
        average.meet()
        left.extend(reference() for reference in alive)
        average.meet()  # before the next gradients

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
    assert left == [None] * count * count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_several_backwards_are_added_wide_and_rounded_once(dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    parts = torch.randn(50, 64, generator=generator).to(dtype)
    weight, unused = Parameter(torch.zeros(64, dtype=dtype)), Parameter(torch.zeros(2, dtype=dtype))
    gradients = Accumulator([weight, unused])
    for part in parts:
        (weight * part).sum().backward()
        gradients.add()
    gradients.finish()
    total = torch.zeros(64)
    for part in parts:
        total += part
    assert torch.equal(weight.grad, total.to(dtype))
    assert unused.grad is None
    gradients.finish()
    assert dtype == torch.float32 or weight.grad is None


def test_a_run_that_accumulates_in_bfloat16_rounds_a_step_once(monkeypatch) -> None:
    trainer = small_dense(threads=1, steps=1, accumulate=8, dtype="bfloat16")
    (replica,), (optimizer,) = trainer.replicas, trainer.optimizers
    forward, batches, applied = replica.forward, [], []

    def noted(batch):
        batches.append(batch)
        return forward(batch)

    monkeypatch.setattr(replica, "forward", noted)
    monkeypatch.setattr(
        optimizer,
        "step",
        lambda *_: applied.extend(p.grad.clone() for p in replica.parameters),
    )
    trainer.run(lambda report: None)
    replica.drafter.zero_grad()
    totals = [torch.zeros(p.shape) for p in replica.parameters]
    for batch in batches:
        forward(batch).weighted_sum.backward()
        for total, p in zip(totals, replica.parameters, strict=True):
            total.add_(p.grad)
            p.grad = None
    assert len(batches) == 8
    for mine, total in zip(applied, totals, strict=True):
        assert torch.equal(mine, total.bfloat16())
