"""Gradients that are sent during the backward: the same ones, and soon."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import Parameter

from dflash_min.config import TrainConfig
from dflash_min.fused.exchange import Exchange
from dflash_min.gradients import Average
from dflash_min.resolve import resolve
from dflash_min.trainer import Trainer

from .trainers import ignore, small_dense, state

pytestmark = pytest.mark.usefixtures("threads_end")


def test_a_run_with_exchange_ends_in_the_same_bits():
    ends = []
    for fused in ((), ("exchange",)):
        trainer = small_dense(threads=3, steps=4, fused=fused)
        trainer.run(ignore)
        ends.append([state(replica.drafter) for replica in trainer.replicas])
    assert ends[0] == ends[1]


def test_a_gradient_is_there_before_the_backward_has_ended():
    first, second = Parameter(torch.tensor([2.0])), Parameter(torch.tensor([3.0]))
    other = [Parameter(torch.zeros(1)) for _ in range(2)]
    exchange = Exchange([[first, second], other])
    seen = []
    with exchange:
        # The first factor's gradient is made last.
        first.register_hook(lambda _: seen.extend(g.item() for g in exchange.received(1)[0]))
        (torch.exp(first) * second).sum().backward()
    assert seen == [0.0, torch.exp(first).item()]
    assert [g.item() for g in exchange.received(1)[0]] == [first.grad.item(), second.grad.item()]
    assert exchange.received(0)[1] == [torch.zeros(1)] * 2


def test_a_parameter_without_a_part_in_a_step_has_no_gradient_left_of_the_last():
    replicas = [[Parameter(torch.ones(2)), Parameter(torch.ones(2))] for _ in range(2)]
    exchange = Exchange(replicas)
    average = Average(2, mean=False, exchange=exchange)

    def work(rank):
        used, sometimes = replicas[rank]
        found = []
        for step in range(2):
            loss = (used * (rank + 1)).sum()
            (loss if step else loss + 10 * sometimes.sum()).backward()
            average.gather(rank, replicas[rank], (1.0,))
            found.append([p.grad.tolist() for p in replicas[rank]])
            used.grad = sometimes.grad = None
            average.meet()
        return found

    with exchange, ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, range(2)):
            assert found == [[[3.0, 3.0], [20.0, 20.0]], [[3.0, 3.0], [0.0, 0.0]]]


def test_nothing_is_sent_after_the_run():
    trainer = small_dense(threads=2, steps=1, fused=("exchange",))
    trainer.run(ignore)
    for replica in trainer.replicas:
        assert not any(p._post_accumulate_grad_hooks for p in replica.parameters)


@pytest.mark.parametrize("said", [{"threads": 1}, {"threads": 2, "accumulate": 2}])
def test_where_it_is_of_no_use_nothing_is_kept_for_it(monkeypatch, said):
    made = []
    monkeypatch.setattr("dflash_min.pipeline.Exchange", lambda *_: made.append(1))
    trainer = small_dense(steps=1, fused=("exchange",), **said)
    trainer.run(ignore)
    assert made == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_run_on_two_gpus_ends_in_the_same_bits():
    ends = []
    for fused in (("optimizer",), ("optimizer", "exchange")):
        config = TrainConfig(
            device="cuda",
            layout="2+2",
            steps=6,
            dtype="bfloat16",
            fused=fused,
            seq_lens=(512,),
            warmup_lens=(512,),
        )
        trainer = Trainer(resolve(config, 2))
        trainer.run(ignore)
        ends.append([state(replica.drafter) for replica in trainer.replicas])
    assert ends[0] == ends[1]
