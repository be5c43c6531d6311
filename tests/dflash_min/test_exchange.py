"""Gradients that are sent during the backward: the same ones, and soon."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import Parameter

from dflash_min import exchange as exchange_module
from dflash_min import pipeline
from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from dflash_min.exchange import Exchange
from dflash_min.gradients import Average
from dflash_min.resolve import resolve
from dflash_min.trainer import Trainer

from .trainers import ignore, small_dense, state

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

pytestmark = pytest.mark.usefixtures("threads_end")


class Counted(Exchange):
    """Counts what is sent."""

    made = 0
    sent = 0

    def __init__(self, replicas) -> None:
        super().__init__(replicas)
        type(self).made += 1

    def _made(self, rank: int, index: int, parameter: torch.Tensor) -> None:
        type(self).sent += 1
        super()._made(rank, index, parameter)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(pipeline, "Exchange", Counted)
    Counted.made = Counted.sent = 0
    return Counted


def ended(trainer: Trainer) -> list[dict[str, bytes]]:
    trainer.run(ignore)
    return [state(replica.drafter) for replica in trainer.replicas]


def test_a_run_with_exchange_ends_in_the_same_bits(counted) -> None:
    plain = ended(small_dense(threads=3, steps=4))
    assert counted.made == 0
    trainer = small_dense(threads=3, steps=4, exchange="during")
    assert ended(trainer) == plain
    count = 3 * len(trainer.replicas[0].parameters)
    assert (counted.made, counted.sent) == (1, 4 * count)
    # And after the run a backward sends nothing any more.
    trainer.replicas[0].parameters[0].sum().backward()
    assert counted.sent == 4 * count


def test_one_drafter_has_nobody_to_send_to(counted) -> None:
    settings = {"threads": 1, "steps": 2}
    assert ended(small_dense(**settings, exchange="during")) == ended(small_dense(**settings))
    assert counted.made == 0


def test_a_run_that_fails_during_a_backward_sends_nothing_afterwards(counted) -> None:
    trainer = small_dense(threads=2, steps=3, exchange="during")
    last = trainer.replicas[1].parameters[0]

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("in the midst of a backward")

    handle = last.register_hook(fail)
    with pytest.raises(ExceptionGroup):
        trainer.run(ignore)
    handle.remove()
    sent = counted.sent
    assert sent > 0
    last.sum().backward()
    assert counted.sent == sent


def numbers(tensors) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


def test_a_bucket_is_there_before_the_backward_has_ended() -> None:
    first, second = Parameter(torch.tensor([2.0])), Parameter(torch.tensor([3.0]))
    other = [Parameter(torch.zeros(1)) for _ in range(2)]
    exchange = Exchange([[first, second], other], bucket_bytes=4)
    for place in exchange.received(1)[0]:
        place.fill_(-1.0)
    seen = []
    with exchange.sending():
        # The first factor's gradient is made last.
        first.register_hook(lambda _: seen.extend(numbers(exchange.received(1)[0])))
        (torch.exp(first) * second).sum().backward()
    gradients = numbers([torch.exp(first), torch.exp(first) * second])
    assert seen == [gradients[0], [-1.0]]
    assert numbers(exchange.received(1)[0]) == gradients


def test_a_bucket_waits_for_all_its_gradients_or_for_the_end_of_the_backward() -> None:
    replicas = [[Parameter(torch.ones(2)) for _ in range(3)] for _ in range(2)]
    exchange = Exchange(replicas, bucket_bytes=16)
    assert [len(bucket) for bucket in exchange.received(0)[0]] == [4, 2]
    for place in exchange.received(1)[0]:
        place.fill_(-1.0)
    with exchange.sending():
        (replicas[0][0] + 2 * replicas[0][1]).sum().backward()
    # The last parameter, which has no part, travels with the one before it.
    assert numbers(exchange.received(1)[0]) == [[-1.0] * 4, [1.0, 1.0]]
    exchange.offer(0)
    assert numbers(exchange.received(1)[0]) == [[0.0, 0.0, 2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("bucket_bytes", [1, 24, 1000])
def test_sums_come_to_the_parameters_that_they_are_of(bucket_bytes) -> None:
    sizes = (3, 1), (2,), (5,), (1, 2)
    replicas = [[Parameter(torch.zeros(size)) for size in sizes] for _ in range(2)]
    exchange = Exchange(replicas, bucket_bytes=bucket_bytes)
    average = Average(replicas, mean=False, road=exchange)
    factors = [[torch.randn(size) for size in sizes] for _ in replicas]

    def work(rank: int) -> None:
        pairs = zip(replicas[rank], factors[rank], strict=True)
        sum((p * factor).sum() for p, factor in pairs).backward()
        average.gather(rank, (1.0,))

    with exchange.sending(), ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    for parameters in replicas:
        for p, mine, theirs in zip(parameters, *factors, strict=True):
            assert torch.equal(p.grad, mine + theirs)


def test_a_second_backward_in_one_step_is_an_error() -> None:
    replicas = [[Parameter(torch.ones(1))] for _ in range(2)]
    exchange = Exchange(replicas)
    with exchange.sending():
        replicas[0][0].sum().backward()
        with pytest.raises(RuntimeError, match="a second backward in one step"):
            replicas[0][0].sum().backward()
        exchange.offer(0)
        replicas[0][0].sum().backward()


def test_a_gradient_goes_to_every_other_replica_and_only_one_place_of_it() -> None:
    replicas = [[Parameter(torch.zeros(1)), Parameter(torch.zeros(1))] for _ in range(4)]
    exchange = Exchange(replicas)
    with exchange.sending():
        replicas[2][1].mul(7.0).sum().backward()
    for rank in range(4):
        exchange.offer(rank)
    for target in range(4):
        found = [numbers(row) for row in exchange.received(target)]
        assert found == [[[0.0, 0.0]], [[0.0, 0.0]], [[7.0, 0.0]], [[0.0, 0.0]]]


def lines_run(replicas: int) -> int:
    """Count what Python does in the exchange's own code for one gradient."""
    parameters = [[Parameter(torch.zeros(1))] for _ in range(replicas)]
    exchange, before, count = Exchange(parameters), sys.gettrace(), 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal count
        if frame.f_code.co_filename != exchange_module.__file__:
            return None
        count += event == "line"
        return trace

    with exchange.sending():
        loss = parameters[0][0].sum()
        sys.settrace(trace)
        try:
            loss.backward()
        finally:
            sys.settrace(before)
    return count


def test_the_work_for_a_gradient_grows_with_the_replicas_and_not_with_their_pairs() -> None:
    few, many = lines_run(3), lines_run(17)
    assert 0 < few < many < 16 / 2 * few


def test_a_parameter_without_a_part_in_a_step_has_no_gradient_left_of_the_last() -> None:
    replicas = [[Parameter(torch.ones(2)), Parameter(torch.ones(2))] for _ in range(2)]
    exchange = Exchange(replicas)
    average = Average(replicas, mean=False, road=exchange)

    def work(rank: int) -> list[list[list[float]]]:
        used, sometimes = replicas[rank]
        found = []
        for step in range(2):
            loss = (used * (rank + 1)).sum()
            (loss if step else loss + 10 * sometimes.sum()).backward()
            average.gather(rank, (1.0,))
            found.append([p.grad.tolist() for p in replicas[rank]])
            used.grad = sometimes.grad = None
            average.meet()
        return found

    with exchange.sending(), ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, range(2)):
            assert found == [[[3.0, 3.0], [20.0, 20.0]], [[3.0, 3.0], [0.0, 0.0]]]


@pytest.mark.parametrize(
    ("said", "gpus", "message"),
    [
        (
            {"device": "cpu", "threads": 2, "accumulate": 2},
            0,
            (
                "--exchange during needs --accumulate 1, not 2: a sum of several batches is not "
                "there before the last backward has ended"
            ),
        ),
        (
            {"device": "cuda", "layout": "1+3"},
            2,
            "--exchange during needs a GPU for each drafter; cuda:1 has several",
        ),
    ],
)
def test_where_it_cannot_be_done_it_is_refused(said, gpus, message) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(TrainConfig(exchange="during", **said), gpus)
    assert str(caught.value) == message


needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.gpu
@needs_two
def test_a_run_on_two_gpus_ends_in_the_same_bits(counted) -> None:
    config = {
        "device": "cuda",
        "targets": ("cuda:0", "cuda:1"),
        "drafters": ("cuda:0", "cuda:1"),
        "steps": 6,
        "dtype": "bfloat16",
        "seq_lens": (512,),
        "warmup_lens": (512,),
    }
    ends = [
        ended(Trainer(resolve(TrainConfig(**config, exchange=exchange), 2)))
        for exchange in ("after", "during")
    ]
    assert ends[0] == ends[1]
    assert counted.sent > 0


@pytest.mark.gpu
@needs_two
@pytest.mark.parametrize("busy", [0, 1])
def test_neither_a_slow_sender_nor_a_slow_receiver_mixes_two_steps(busy) -> None:
    sizes = 1 << 24, 1 << 20, 1 << 22
    replicas = [[Parameter(torch.zeros(n, device=f"cuda:{i}")) for n in sizes] for i in range(2)]
    # The last two share a bucket, which is not full where the last has no part in a step.
    exchange = Exchange(replicas, bucket_bytes=24 << 20)
    average = Average(replicas, mean=False, road=exchange)
    matrix = torch.randn(4096, 4096, device=f"cuda:{busy}")

    def work(rank: int) -> list[list[float]]:
        found = []
        for step in range(8):
            if rank == busy:  # the device is tens of milliseconds behind its thread
                for _ in range(30):
                    matrix @ matrix
            used = replicas[rank][: 3 - step % 2]
            sum((p * float(10**rank * (step + 1))).sum() for p in used).backward()
            average.gather(rank, (1.0,))
            found.append([(p.grad.min(), p.grad.max()) for p in replicas[rank]])
            for p in replicas[rank]:
                p.grad = None
            average.meet()
        return [[each.item() for pair in pairs for each in pair] for pairs in found]

    with exchange.sending(), ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, range(2)):
            for step, pairs in enumerate(found):
                whole = 11.0 * (step + 1)
                assert pairs == [whole] * 4 + [0.0 if step % 2 else whole] * 2
    exchange.release()
