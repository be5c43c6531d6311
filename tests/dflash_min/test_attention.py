"""The mask against a slow element-wise reference, and compiled attention against a dense one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_min import blocks
from dflash_min.attention import (
    CompiledAttention,
    attend_dense,
    build_block_mask,
    dense_mask,
    dflash_mask_mod,
    repeat_heads,
)
from dflash_min.config import ModelConfig
from dflash_min.model import Drafter

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TILE = 128


def slow_mask(anchors: list[list[int]], keep: list[list[bool]], context: int, slots: int) -> Tensor:
    """Who sees whom, in words: one pair after another."""
    count = len(anchors[0])

    def sees(row: int, q: int, kv: int) -> bool:
        block = q // slots
        if not keep[row][block]:
            return False
        if kv < context:
            return kv < anchors[row][block]
        return (kv - context) // slots == block

    queries, keys = range(count * slots), range(context + count * slots)
    rows = range(len(anchors))
    return torch.tensor([[[[sees(row, q, kv) for kv in keys] for q in queries]] for row in rows])


CASES = {
    "overlapping": ([[3, 4, 6]], [[True] * 3], 12, 4),
    "same anchor twice": ([[5, 5]], [[True, True]], 9, 4),
    "anchor 0": ([[0, 7]], [[True, True]], 9, 4),
    "tail block": ([[2, 8]], [[True, True]], 10, 4),
    "anchor is the last token": ([[9]], [[True]], 10, 4),
    "padded": ([[2, 9, 9]], [[True, False, False]], 10, 4),
    "all padded": ([[9, 9]], [[False, False]], 10, 4),
    "two rows": ([[1, 6], [3, 9]], [[True, True], [True, False]], 10, 5),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_mask_equals_the_slow_reference(case) -> None:
    anchors, keep, context, slots = case
    mask = dense_mask(torch.tensor(anchors), torch.tensor(keep), context, slots)
    assert torch.equal(mask, slow_mask(anchors, keep, context, slots))


def test_mask_of_the_published_vector() -> None:
    # S = 5, B = 4, anchors (0, 2), from NVIDIA Model-Optimizer's description of DFlash.
    mask = dense_mask(torch.tensor([[0, 2]]), torch.tensor([[True, True]]), 5, 4)
    own, other = [True] * 4, [False] * 4
    expected = [[False] * 5 + own + other] * 4 + [[True] * 2 + [False] * 3 + other + own] * 4
    assert mask[0, 0].tolist() == expected


@st.composite
def mask_cases(draw):
    context, slots = draw(st.integers(1, 24)), draw(st.integers(1, 6))
    rows, count = draw(st.integers(1, 2)), draw(st.integers(1, 4))

    def grid(element):
        row = st.lists(element, min_size=count, max_size=count)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    return grid(st.integers(0, context - 1)), grid(st.booleans()), context, slots


@settings(max_examples=60, deadline=None)
@given(mask_cases())
def test_mask_equals_the_slow_reference_anywhere(case) -> None:
    anchors, keep, context, slots = case
    mask = dense_mask(torch.tensor(anchors), torch.tensor(keep), context, slots)
    assert torch.equal(mask, slow_mask(anchors, keep, context, slots))


@pytest.mark.parametrize(("context", "count", "slots"), [(40, 4, 6), (130, 9, 16), (257, 9, 15)])
def test_block_mask_holds_exactly_the_tiles_that_are_seen(context, count, slots) -> None:
    anchors = torch.randint(0, context, (2, count), generator=torch.Generator().manual_seed(0))
    keep = torch.ones(2, count, dtype=torch.bool)
    keep[1, -3:] = False
    block_mask = build_block_mask(anchors, keep, context, slots, "cpu")
    reference = slow_mask(anchors.tolist(), keep.tolist(), context, slots)
    queries, keys = reference.shape[2:]
    padded = torch.nn.functional.pad(reference, (0, -keys % TILE, 0, -queries % TILE))
    tiles = padded.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).any(dim=5).any(dim=3)
    assert block_mask.shape == (2, 1, queries, context + queries)  # one head for all
    assert torch.equal(block_mask.to_dense().bool(), tiles)


def test_queries_past_the_last_block_read_the_last_block() -> None:
    anchors, keep = torch.tensor([[3, 6]]), torch.tensor([[True, True]])
    mask_mod = dflash_mask_mod(anchors, keep, 8, 4)
    zero = torch.tensor(0)
    past = torch.arange(8, TILE)  # a kernel's tile holds 128 queries, whatever Q is
    for kv in (0, 5, 6, 7):
        seen = mask_mod(zero, zero, past, torch.tensor(kv))
        assert torch.equal(seen, torch.full_like(past, kv < 6, dtype=torch.bool))


def attention_inputs(dtype: torch.dtype, *, batch: int = 2) -> tuple[list[Tensor], Tensor, Tensor]:
    """q, k, v with two query heads a key head, and anchors of which the last is padded."""
    generator = torch.Generator().manual_seed(1)
    context, count, slots = 70, 5, 4
    shapes = [(batch, 4, count * slots, 8), *[(batch, 2, context + count * slots, 8)] * 2]
    qkv = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    anchors = torch.randint(0, context, (batch, count), generator=generator).sort().values
    keep = torch.ones(batch, count, dtype=torch.bool)
    keep[:, -1] = False
    return [tensor.to(dtype).requires_grad_() for tensor in qkv], anchors, keep


def output_and_gradients(attend, qkv: list[Tensor]) -> list[Tensor]:
    out = attend(*qkv)
    cotangent = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    return [out.detach(), *torch.autograd.grad(out, qkv, cotangent.to(out.dtype))]


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
def test_compiled_attention_equals_sdpa_with_gradients(dtype, compiled_graphs) -> None:
    qkv, anchors, keep = attention_inputs(dtype)
    block_mask = build_block_mask(anchors, keep, 70, 4, "cpu")
    mask = dense_mask(anchors, keep, 70, 4)
    compiled = CompiledAttention(["cpu"], dynamic=True)
    found = output_and_gradients(lambda q, k, v: compiled(q, k, v, block_mask), qkv)
    exact = output_and_gradients(
        lambda q, k, v: attend_dense(q, k, v, mask),
        [tensor.detach().double().requires_grad_() for tensor in qkv],
    )
    for mine, reference in zip(found, exact, strict=True):
        assert mine.dtype == dtype
        # Sums of up to T products, each rounded; rounding errors add up as a random walk.
        tolerance = 4 * torch.finfo(dtype).eps * math.sqrt(mask.shape[-1]) * reference.abs().max()
        assert (mine.double() - reference).abs().max() <= tolerance
    assert compiled_graphs() == 1  # it was compiled code


@pytest.mark.parametrize("kind", ["compiled", "dense"])
@pytest.mark.parametrize(
    "padded", [slice(-1, None), slice(None)], ids=["last block", "every block"]
)
def test_padded_blocks_give_zero_and_no_gradient(kind, padded, compiled_graphs) -> None:
    qkv, anchors, keep = attention_inputs(torch.float32)
    keep[:, padded] = False
    if kind == "compiled":
        block_mask = build_block_mask(anchors, keep, 70, 4, "cpu")
        compiled = CompiledAttention(["cpu"], dynamic=True)
        attend = lambda q, k, v: compiled(q, k, v, block_mask)  # noqa: E731
    else:
        mask = dense_mask(anchors, keep, 70, 4)
        attend = lambda q, k, v: attend_dense(q, k, v, mask)  # noqa: E731
    out, grad_q, grad_k, grad_v = output_and_gradients(attend, qkv)
    assert compiled_graphs() == (kind == "compiled")
    blind = ~keep.repeat_interleave(4, dim=1)[:, None, :, None]
    assert torch.all(out.masked_select(blind) == 0)
    assert torch.all(grad_q.masked_select(blind) == 0)
    assert torch.all(out.masked_select(~blind) != 0)
    for grad in (grad_q, grad_k, grad_v):
        assert torch.isfinite(grad).all()
    # A padded block's own keys are seen by nobody.
    assert torch.all(grad_k[:, :, 70:].masked_select(blind) == 0)
    assert torch.all(grad_v[:, :, 70:].masked_select(blind) == 0)


def test_a_device_that_was_not_named_is_refused() -> None:
    compiled = CompiledAttention(["cpu", torch.device("cpu")])
    assert list(compiled.by_device) == [torch.device("cpu")]
    block_mask = build_block_mask(torch.tensor([[2]]), torch.tensor([[True]]), 4, 4, "cpu")
    qkv = [torch.empty(1, 2, length, 8, device="meta") for length in (4, 8, 8)]
    with pytest.raises(ValueError, match="compiled for cpu, not for meta"):
        compiled(*qkv, block_mask)


BATCH = 2


def train_call(drafter: Drafter, attention: CompiledAttention, context: int, count: int) -> None:
    """One forward and backward on random text features, with anchors drawn anew."""
    config = drafter.config
    generator = torch.Generator().manual_seed(context)
    loss_mask = torch.ones(BATCH, context, dtype=torch.bool)
    loss_mask[:, : context // 3] = False
    anchors, keep = blocks.sample_anchors(loss_mask, count, generator)
    block_mask = build_block_mask(anchors, keep, context, config.block_size, "cpu")
    hidden = drafter(
        torch.randn(BATCH, count * config.block_size, config.hidden, generator=generator),
        torch.randn(BATCH, context, len(config.taps) * config.hidden, generator=generator),
        blocks.positions(context, anchors, config.block_size),
        lambda q, k, v: attention(q, k, v, block_mask),
    )
    if torch.is_grad_enabled():
        hidden.sum().backward()


def drafter(*, kv_heads: int = 2, head_dim: int = 8, checkpoint_layers: bool = True) -> Drafter:
    config = ModelConfig(
        hidden=16,
        heads=4,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=32,
        layers=1,
        target_layers=6,
        block_size=16,
        vocab=32,
        mask_token_id=31,
    )
    return Drafter(config, checkpoint_layers=checkpoint_layers)


# Sizes that are equal by chance at a warm-up length are the trap: two key tiles beside two rows and
# two key heads; as many keys as the projection of v is wide.
@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "count"),
    [(2, 8, 8), pytest.param(2, 128, 8, marks=pytest.mark.slow)],
)
def test_no_length_recompiles_after_a_warm_up_at_two(
    kv_heads, head_dim, count, compiled_graphs
) -> None:
    model = drafter(kv_heads=kv_heads, head_dim=head_dim)
    attention = CompiledAttention(["cpu"], dynamic=True)
    for context in (128, 160):
        train_call(model, attention, context, count)
    warm = compiled_graphs()
    assert warm > 0
    for context in (192, 256, 416):
        train_call(model, attention, context, count)
    assert compiled_graphs() == warm
    # The count is alive: another grad mode is another compile.
    with torch.no_grad():
        train_call(model, attention, 192, count)
    assert compiled_graphs() == warm + 1


def test_automatic_dynamic_sizes_recompile_when_a_size_first_changes(
    compiled_graphs,
) -> None:
    model, attention = drafter(), CompiledAttention(["cpu"], dynamic=None)
    seen = []
    for context in (192, 224, 256, 320, 512):
        train_call(model, attention, context, 8)
        seen.append(compiled_graphs())
    # T changes at 224, the number of key tiles not before 320.
    assert seen == [1, 2, 2, 3, 3]


def test_static_sizes_recompile_at_every_length(
    compiled_graphs,
) -> None:
    model, attention = drafter(), CompiledAttention(["cpu"], dynamic=False)
    for context in (192, 224, 192):
        train_call(model, attention, context, 8)
    assert compiled_graphs() == 2


def test_the_number_of_anchors_may_vary(compiled_graphs) -> None:
    compiled = CompiledAttention(["cpu"], dynamic=True)
    generator = torch.Generator().manual_seed(3)
    for count in (9, 12, 17):
        anchors = torch.randint(0, 50, (1, count), generator=generator)
        keep = torch.ones(1, count, dtype=torch.bool)
        q = torch.randn(1, 2, count * 4, 8, generator=generator)
        k, v = torch.randn(2, 1, 1, 50 + count * 4, 8, generator=generator)
        out = compiled(q, k, v, build_block_mask(anchors, keep, 50, 4, "cpu"))
        expected = attend_dense(q, k, v, dense_mask(anchors, keep, 50, 4))
        torch.testing.assert_close(out, expected)
    assert 1 <= compiled_graphs() <= 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnGpu:
    """The same with Triton kernels, whose products of float32 may be rounded to TF32."""

    def test_kernels_equal_sdpa_and_padded_blocks_give_zero(self, compiled_graphs) -> None:
        generator = torch.Generator().manual_seed(4)
        context, count, slots = 300, 20, 16
        anchors = torch.randint(0, context, (2, count), generator=generator).sort().values.cuda()
        keep = (torch.arange(count) < count - 3).repeat(2, 1).cuda()
        shapes = [(2, 4, count * slots, 64), *[(2, 2, context + count * slots, 64)] * 2]
        qkv = [torch.randn(shape, generator=generator).cuda().requires_grad_() for shape in shapes]
        block_mask = build_block_mask(anchors, keep, context, slots, "cuda")
        mask = dense_mask(anchors, keep, context, slots)
        compiled = CompiledAttention(["cuda:0"], dynamic=True)
        out = compiled(*qkv, block_mask)
        cotangent = torch.randn(out.shape, generator=generator).cuda()
        found = [out, *torch.autograd.grad(out, qkv, cotangent)]
        wide = [tensor.detach().double().requires_grad_() for tensor in qkv]
        exact_out = attend_dense(*wide, mask)
        exact = [exact_out, *torch.autograd.grad(exact_out, wide, cotangent.double())]
        for mine, reference in zip(found, exact, strict=True):
            tolerance = 4 * 2**-10 * math.sqrt(mask.shape[-1]) * reference.abs().max()
            assert (mine.double() - reference).abs().max() <= tolerance
        blind = ~keep.repeat_interleave(slots, dim=1)[:, None, :, None]
        assert torch.all(found[0].masked_select(blind) == 0)
        assert torch.all(found[1].masked_select(blind) == 0)

    def test_no_length_recompiles_after_a_warm_up_at_two(self, compiled_graphs) -> None:
        compiled = CompiledAttention(["cuda:0"], dynamic=True)
        count, slots = 32, 16

        def call(context: int) -> None:
            generator = torch.Generator().manual_seed(context)
            loss_mask = torch.ones(1, context, dtype=torch.bool)
            anchors, keep = blocks.sample_anchors(loss_mask, count, generator)
            block_mask = build_block_mask(anchors, keep, context, slots, "cuda")
            queries = count * slots
            q = torch.randn(1, 4, queries, 64, device="cuda", requires_grad=True)
            k, v = (
                torch.randn(1, 2, context + queries, 64, device="cuda", requires_grad=True)
                for _ in range(2)
            )
            compiled(q, k, v, block_mask).sum().backward()

        for context in (512, 768):
            call(context)
        warm = compiled_graphs()
        for context in (1024, 1536, 2048, 8192):
            call(context)
        assert compiled_graphs() == warm > 0


def test_attention_with_repeated_key_heads_is_that_with_shared_ones() -> None:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 6, 9, 8, generator=generator)
    k, v = (torch.randn(2, 3, 21, 8, generator=generator) for _ in "kv")
    mask = torch.rand(2, 1, 9, 21, generator=generator) < 0.5
    mask[0, :, 4] = False
    repeated = attend_dense(q, repeat_heads(k, 6), repeat_heads(v, 6), mask)
    torch.testing.assert_close(repeated, attend_dense(q, k, v, mask))
    assert repeated[0, :, 4].eq(0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_with_a_mask_writes_no_scores_on_a_gpu(dtype) -> None:
    q = torch.randn(1, 32, 2048, 128, device="cuda", dtype=dtype)
    k, v = (torch.randn(1, 8, 4104, 128, device="cuda", dtype=dtype) for _ in "kv")
    mask = torch.ones(1, 1, 2048, 4104, device="cuda", dtype=torch.bool).tril(2048)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        attend_dense(q, k, v, mask)
    scores = 32 * 2048 * 4104 * dtype.itemsize
    assert torch.cuda.max_memory_allocated() - before < scores / 2
