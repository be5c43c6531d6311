"""The chunked loss against a plain loop, and its sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_min.loss import LossSums, chunked_loss

if TYPE_CHECKING:
    from torch import Tensor

VOCAB, WIDTH = 11, 6

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def naive(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, slots: int):
    """Return the weighted loss, accuracy by slot and acceptance length, one number at a time."""
    total = weight_sum = 0.0
    correct, scored = [0] * slots, [0] * slots
    accepted = []
    for row in range(len(labels)):
        for start in range(0, labels.shape[1], slots):
            leading, running, counts = 0, True, False
            for k in range(slots):
                weight = weights[row, start + k].item()
                logits = (head @ hidden[row, start + k]).tolist()
                label = labels[row, start + k].item()
                top = max(logits)
                log_sum = top + math.log(sum(math.exp(logit - top) for logit in logits))
                total += weight * (log_sum - logits[label])
                weight_sum += weight
                right = weight > 0 and logits.index(top) == label
                scored[k] += weight > 0
                correct[k] += right
                counts = counts or weight > 0
                if k > 0:
                    running = running and right
                    leading += running
            if counts:
                accepted.append(leading)
    loss = total / weight_sum if weight_sum else 0.0
    return loss, correct, scored, accepted


def batch(seed: int, rows: int, count: int, slots: int, *, keep: float = 0.7):
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, count * slots)
    # As good as double precision is, so that the naive loop can be met to many digits.
    hidden = torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    likeliest = (hidden @ head.T).argmax(-1)
    chance = torch.randint(0, VOCAB, shape, generator=generator)
    labels = torch.where(torch.rand(shape, generator=generator) < 0.6, likeliest, chance)
    weights = torch.rand(shape, generator=generator)
    weights = weights * (torch.rand(shape, generator=generator) < keep)
    weights[:, ::slots] = 0
    return hidden, head, labels, weights


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(2, 5),
    st.integers(1, 50),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_loss_and_metrics_equal_a_plain_loop(seed, rows, count, slots, chunk, keep) -> None:
    hidden, head, labels, weights = batch(seed, rows, count, slots, keep=keep)
    sums = chunked_loss(hidden, head, labels, weights, chunk, block_size=slots)
    loss, correct, scored, accepted = naive(hidden, head, labels, weights, slots)
    # Logits are float32 and within 30, so that each is off by up to 2e-6, however small the loss.
    assert sums.loss.item() == pytest.approx(loss, rel=1e-5, abs=4e-6)
    assert sums.slot_correct.tolist() == correct
    assert sums.slot_scored.tolist() == scored
    assert sums.blocks.item() == len(accepted)
    if accepted:
        assert sums.accept_len.item() == pytest.approx(sum(accepted) / len(accepted) + 1)
        assert sums.accuracy.item() == pytest.approx(sum(correct) / sum(scored))


def loss_and_gradients(chunk: int, *, head_trained: bool) -> list[Tensor]:
    hidden, head, labels, weights = batch(3, 2, 5, 4)
    hidden.requires_grad_()
    head.requires_grad_(head_trained)
    sums = chunked_loss(hidden, head, labels, weights, chunk, block_size=4)
    wanted = [hidden, head] if head_trained else [hidden]
    return [sums.loss.detach(), *torch.autograd.grad(sums.loss, wanted)]


@pytest.mark.parametrize("head_trained", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 20, 39])
def test_chunks_give_the_loss_and_gradients_of_the_whole(chunk, head_trained) -> None:
    whole = loss_and_gradients(40, head_trained=head_trained)
    chunked = loss_and_gradients(chunk, head_trained=head_trained)
    for mine, reference in zip(chunked, whole, strict=True):
        # Logits and softmax are float32; the order of the sums is all that differs.
        tolerance = 8 * torch.finfo(torch.float32).eps * reference.abs().max()
        assert (mine - reference).abs().max() <= tolerance


class LargestLogits(TorchDispatchMode):
    """Notes how many rows of logits any one operation makes, and how often the head is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == VOCAB:
            self.rows = max(self.rows, out.shape[0])
            self.products += func is torch.ops.aten.mm.default
        return out


def test_no_more_logits_exist_than_a_chunk_has_and_the_backward_makes_them_again() -> None:
    hidden, head, labels, weights = batch(4, 2, 6, 4)
    hidden.requires_grad_()
    with LargestLogits() as seen:
        sums = chunked_loss(hidden, head, labels, weights, 8, block_size=4)
        assert seen.products == 6
        sums.loss.backward()
    assert seen.products == 12
    assert seen.rows == 8


def test_a_batch_without_anchors_has_zero_loss_and_zero_gradients() -> None:
    hidden, head, labels, weights = batch(5, 2, 3, 4)
    hidden.requires_grad_()
    sums = chunked_loss(hidden, head, labels, torch.zeros_like(weights), 8, block_size=4)
    sums.loss.backward()
    assert sums.loss.item() == 0
    assert sums.blocks.item() == 0
    assert torch.all(hidden.grad == 0)


def test_sums_of_replicas_combine_to_the_loss_of_the_whole_batch() -> None:
    hidden, head, labels, weights = batch(6, 3, 4, 4)
    whole = chunked_loss(hidden, head, labels, weights, 16, block_size=4)
    parts = [
        chunked_loss(
            hidden[row : row + 1],
            head,
            labels[row : row + 1],
            weights[row : row + 1],
            16,
            block_size=4,
        ).detached()
        for row in range(3)
    ]
    combined = parts[0] + parts[1] + parts[2]
    for name in ("loss", "accuracy", "accept_len", "slot_accuracy"):
        torch.testing.assert_close(
            getattr(combined, name), getattr(whole, name), equal_nan=True, rtol=1e-6, atol=0
        )
    assert isinstance(combined, LossSums)
    assert not combined.weighted_sum.requires_grad


def test_a_run_of_correct_slots_ends_at_a_slot_that_is_not_scored() -> None:
    head = torch.eye(VOCAB)
    labels = torch.arange(8).view(1, 8)
    hidden = head[labels] * 9  # every slot is right
    weights = torch.tensor([[0.0, 1, 1, 1, 0, 1, 0, 1]])  # the second block has a hole at slot 2
    sums = chunked_loss(hidden, head, labels, weights, 8, block_size=4)
    assert sums.accuracy.item() == 1
    assert sums.accept_len.item() == (3 + 1) / 2 + 1


def test_head_of_another_dtype_is_applied_in_its_own() -> None:
    hidden, head, labels, weights = batch(7, 1, 3, 4)
    exact = chunked_loss(hidden, head, labels, weights, 8, block_size=4)
    hidden = hidden.float().requires_grad_()
    sums = chunked_loss(hidden, head.bfloat16(), labels, weights, 8, block_size=4)
    sums.loss.backward()
    assert sums.loss.dtype == torch.float32
    assert hidden.grad.dtype == torch.float32
    assert sums.loss.item() == pytest.approx(exact.loss.item(), rel=0.1)


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 slot"):
        chunked_loss(*batch(8, 1, 1, 2), 0, block_size=2)
