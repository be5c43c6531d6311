"""Each fused piece against what it stands in for, and whole runs with all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import dflash_min
from dflash_min.attention import build_block_mask, dense_mask
from dflash_min.config import PIECES, TrainConfig
from dflash_min.errors import UsageError
from dflash_min.fused.loss import fused_loss
from dflash_min.fused.mask import block_mask
from dflash_min.loss import chunked_loss
from dflash_min.resolve import resolve
from dflash_min.trainer import Trainer

from ..bench.stepping.compile_counts import compiles
from .trainers import small, state

# --- mask


@st.composite
def masks(draw):
    context, slots = draw(st.integers(1, 700)), draw(st.integers(1, 300))
    rows, count = draw(st.integers(1, 2)), draw(st.integers(1, max(1, 600 // slots)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    anchors = torch.randint(0, context, (rows, count), generator=generator)
    if draw(st.booleans()):  # at the edges of tiles
        edges = (anchors + 64) // 128 * 128
        anchors = (edges + torch.randint(-1, 2, edges.shape, generator=generator)).clamp(
            0, context - 1
        )
    if draw(st.booleans()):
        anchors = anchors.sort(dim=1).values
    share = draw(st.sampled_from([0.0, 0.6, 0.95, 1.0]))
    keep = torch.rand(rows, count, generator=generator) < share
    return anchors, keep, context, slots


@pytest.mark.usefixtures("one_torch_thread")
@settings(max_examples=60, deadline=None)
@given(masks())
def test_the_tiles_by_arithmetic_are_those_of_every_pair_evaluated(case) -> None:
    mine, torchs = block_mask(*case, "cpu"), build_block_mask(*case, "cpu")
    assert mine.shape == torchs.shape
    assert mine.BLOCK_SIZE == torchs.BLOCK_SIZE
    for name, count in (
        ("kv_indices", "kv_num_blocks"),
        ("full_kv_indices", "full_kv_num_blocks"),
        ("q_indices", "q_num_blocks"),
        ("full_q_indices", "full_q_num_blocks"),
    ):
        for field in (name, count):
            assert torch.equal(getattr(mine, field), getattr(torchs, field)), field
            assert getattr(mine, field).dtype == getattr(torchs, field).dtype


@pytest.mark.usefixtures("one_torch_thread")
@settings(max_examples=60, deadline=None)
@given(masks())
def test_two_bounds_a_query_say_what_it_sees(case) -> None:
    anchors, _, context, slots = case
    queries = anchors.shape[1] * slots
    mask_mod = block_mask(*case, "cpu").mask_mod

    def evaluated(queries: int) -> torch.Tensor:
        row = torch.arange(len(anchors)).view(-1, 1, 1, 1)
        q, kv = torch.arange(queries)[:, None], torch.arange(context + anchors.shape[1] * slots)
        return mask_mod(row, torch.zeros_like(row), q, kv)

    assert torch.equal(evaluated(queries), dense_mask(*case))
    # Kernels evaluate whole tiles.
    assert not evaluated(-(-queries // 128) * 128)[:, :, queries:].any()


class Largest(TorchDispatchMode):
    """Notes how many elements any one tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


def test_no_tensor_of_pairs_is_made() -> None:
    anchors = torch.arange(0, 2048, 32)[None]
    with Largest() as seen:
        block_mask(anchors, torch.ones_like(anchors, dtype=torch.bool), 2048, 16, "cpu")
    queries = 64 * 16
    assert seen.elements <= queries * (2048 + queries) / 128  # of 3 million pairs


# --- loss

VOCAB, WIDTH = 11, 6


def scored_slots(seed: int, rows: int, count: int, slots: int, keep: float = 0.7):
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, count * slots)
    hidden = torch.randn(*shape, WIDTH, generator=generator)
    head = torch.randn(VOCAB, WIDTH, generator=generator)
    likeliest = (hidden @ head.T).argmax(-1)
    chance = torch.randint(0, VOCAB, shape, generator=generator)
    labels = torch.where(torch.rand(shape, generator=generator) < 0.6, likeliest, chance)
    weights = torch.rand(shape, generator=generator)
    weights = weights * (torch.rand(shape, generator=generator) < keep)
    weights[:, ::slots] = 0
    return hidden, head, labels, weights


def loss_and_gradient(function, batch, chunk: int, slots: int):
    hidden, *rest = batch
    hidden = hidden.detach().requires_grad_()
    sums = function(hidden, *rest, chunk, block_size=slots)
    sums.loss.backward()
    return sums, hidden.grad


@pytest.mark.usefixtures("one_torch_thread")
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(2, 5),
    st.integers(1, 50),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_fused_loss_is_the_chunked_one(seed, rows, count, slots, chunk, keep) -> None:
    batch = scored_slots(seed, rows, count, slots, keep)
    fused, gradient = loss_and_gradient(fused_loss, batch, chunk, slots)
    exact, exact_gradient = loss_and_gradient(chunked_loss, batch, 10**6, slots)
    torch.testing.assert_close(fused.loss, exact.loss)
    torch.testing.assert_close(gradient, exact_gradient)
    for name in ("weight_sum", "slot_correct", "slot_scored", "accepted", "blocks"):
        torch.testing.assert_close(getattr(fused, name), getattr(exact, name))


def test_the_fused_loss_in_bfloat16_rounds_as_often_as_the_chunked_one() -> None:
    hidden, head, labels, weights = scored_slots(1, 2, 8, 4)
    batch = hidden.bfloat16(), head.bfloat16(), labels, weights
    fused, gradient = loss_and_gradient(fused_loss, batch, 7, 4)
    exact, exact_gradient = loss_and_gradient(chunked_loss, batch, 7, 4)
    assert gradient.dtype == torch.bfloat16
    assert fused.weighted_sum.dtype == torch.float32
    # The same rounded logits, then float32 in both.
    torch.testing.assert_close(fused.loss, exact.loss)
    # Gradients of the logits and of the output are each rounded to 8 bits.
    error = (gradient - exact_gradient).abs().max()
    assert error <= 2**-7 * exact_gradient.abs().max()


class HeadProducts(TorchDispatchMode):
    """Counts products with the head, and notes the most rows of logits at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in {torch.ops.aten.mm.out, torch.ops.aten.mm.default}:
            self.count += 1
            if out.shape[1] == VOCAB:
                self.rows = max(self.rows, out.shape[0])
        return out


@pytest.mark.parametrize(("grad", "products"), [(True, 6), (False, 3)])
def test_the_head_is_applied_twice_to_each_scored_slot_and_once_without_gradients(
    grad, products
) -> None:
    hidden, head, labels, weights = scored_slots(2, 2, 4, 4)  # 24 slots after anchors
    hidden.requires_grad_()
    with HeadProducts() as seen, torch.set_grad_enabled(grad):
        sums = fused_loss(hidden, head, labels, weights, 8, block_size=4)
        if grad:
            sums.loss.backward()
    assert (seen.count, seen.rows) == (products, 8)
    assert sums.weighted_sum.requires_grad is grad


def test_a_head_that_is_trained_and_a_chunk_of_nothing_are_refused() -> None:
    hidden, head, labels, weights = scored_slots(3, 1, 1, 2)
    with pytest.raises(ValueError, match="frozen"):
        fused_loss(hidden, head.requires_grad_(), labels, weights, 8, block_size=2)
    with pytest.raises(ValueError, match="at least 1 slot"):
        fused_loss(hidden, head.detach(), labels, weights, 0, block_size=2)


# --- whole runs


def run_small(**settings) -> tuple[Trainer, list[float], dict[str, int]]:
    """Run two replicas; return losses by step, and what was compiled in their threads."""
    trainer = small(threads=2, steps=4, seq_lens=(96, 200, 300), **settings)
    reports = []
    torch._dynamo.reset()
    with compiles() as counts:
        trainer.run(reports.append)
    in_threads = {name: n for name, n in counts.items() if name.startswith(("drafter", "target"))}
    return trainer, [report.loss for report in reports], in_threads


@pytest.fixture(scope="module")
def plain_run():
    return run_small()


def test_a_fused_run_learns_what_the_plain_one_does_and_compiles_nothing_in_threads(
    plain_run,
) -> None:
    fast, fast_losses, in_threads = run_small(fused=("mask", "layers", "loss"))
    plain, losses, plain_in_threads = plain_run
    assert in_threads == plain_in_threads == {}
    assert fast_losses == pytest.approx(losses, rel=1e-5)
    for mine, theirs in zip(fast.replicas[0].parameters, plain.replicas[0].parameters, strict=True):
        # Adam divides by the gradient's size, so that where it is nothing but rounding the first
        # steps go either way; the rate is 6e-4 at most.
        assert (mine - theirs).abs().max() <= 4 * 2 * 6e-4
        assert (mine - theirs).abs().mean() <= 1e-5


def test_the_fast_preset_trains_replicas_to_equal_bits_near_float32(plain_run) -> None:
    trainer, losses, _ = run_small(preset="fast")
    first, second = (replica.drafter for replica in trainer.replicas)
    assert {p.dtype for p in first.parameters()} == {torch.bfloat16}
    assert first.fc.weight.equal(second.fc.weight)
    assert state(first.float()) == state(second.float())
    assert losses == pytest.approx(plain_run[1], rel=0.01)


def settings_of(**said):
    return resolve(TrainConfig(device="cpu", **said), gpus=0)


def test_what_the_preset_chooses_and_what_goes_before_it() -> None:
    plain, fast = settings_of(), settings_of(preset="fast")
    assert (plain.dtype, plain.fused, plain.activation_checkpointing) == (
        "float32",
        (),
        True,
    )
    assert (fast.dtype, fast.fused, fast.activation_checkpointing) == (
        "bfloat16",
        PIECES,
        False,
    )
    said = settings_of(preset="fast", dtype="float32", fused=("loss", "mask", "loss"))
    assert (said.dtype, said.fused, said.activation_checkpointing) == (
        "float32",
        ("mask", "loss"),
        True,
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"fused": ("mask", "head")},
            f"--fused takes pieces of {', '.join(PIECES)}, or none alone; not head",
        ),
        ({"fused": ("optimizer",)}, "--fused optimizer needs --dtype bfloat16"),
    ],
)
def test_pieces_that_cannot_be_fused_are_refused(said, message) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(**said)
    assert str(caught.value) == message


# --- kernels


ROOT = str(Path(dflash_min.__file__).parents[1])


def checks(device: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kernel_checks.py")), device],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kernels_equal_torch_in_the_interpreter() -> None:
    assert len(checks("cpu", TRITON_INTERPRET="1")) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_equal_torch_on_a_gpu() -> None:
    assert len(checks("cuda")) == 3


GPU_SIZES = {
    "device": "cuda",
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "mlp": 96,
    "block_size": 16,
    "anchors": 16,
    "warmup_lens": (512, 768),
    "seq_lens": (512, 1100, 2048),
    "steps": 6,
}


def run_on_gpus(**settings) -> tuple[list[float], dict[str, int]]:
    trainer = Trainer(resolve(TrainConfig(**{**GPU_SIZES, **settings}), torch.cuda.device_count()))
    reports = []
    torch._dynamo.reset()
    with compiles() as counts:
        trainer.run(reports.append)
    in_threads = {name: n for name, n in counts.items() if name.startswith(("drafter", "target"))}
    return [report.loss for report in reports], in_threads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_piece_on_a_gpu_learns_what_the_plain_run_does() -> None:
    plain, _ = run_on_gpus(threads=2, dtype="bfloat16")
    for fused in (*((piece,) for piece in PIECES), PIECES):
        losses, in_threads = run_on_gpus(threads=2, dtype="bfloat16", fused=fused)
        assert in_threads == {}, fused
        assert losses == pytest.approx(plain, rel=0.01), fused
