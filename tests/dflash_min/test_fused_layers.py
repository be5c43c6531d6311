"""The fused layers against the drafter's own, and their first calls, which are made one by one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from dflash_min import blocks
from dflash_min.attention import attend_dense, dense_mask
from dflash_min.fused import layers
from dflash_min.fused.layers import FusedDrafter, padded
from dflash_min.fused.mask import block_mask
from dflash_min.model import Drafter

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 4


def drafts(config, drafter: Drafter, context: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randint(0, context - 1, (2, 8), generator=generator).sort(dim=1).values
    keep = torch.ones_like(anchors, dtype=torch.bool)
    keep[1, -2:] = False
    width = len(config.taps) * config.hidden
    dtype = drafter.fc.weight.dtype
    features = torch.randn(2, context, width, generator=generator).to(dtype)
    embeds = torch.randn(2, 8 * SLOTS, config.hidden, generator=generator).to(dtype)
    return anchors, keep, features, embeds


def run_dense(drafter: Drafter, anchors, keep, features, embeds) -> Tensor:
    context = features.shape[1]
    mask = dense_mask(anchors, keep, context, SLOTS)
    positions = blocks.positions(context, anchors, SLOTS)
    return drafter(embeds, features, positions, lambda q, k, v: attend_dense(q, k, v, mask))


def run_fused(fused: FusedDrafter, anchors, keep, features, embeds) -> Tensor:
    features = padded(features)
    context = features.shape[1]
    positions = blocks.positions(context, anchors, SLOTS)
    return fused(embeds, features, positions, block_mask(anchors, keep, context, SLOTS, "cpu"))


def gradients(drafter: Drafter, hidden: Tensor) -> list[Tensor]:
    probe = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))
    (hidden * probe.to(hidden.dtype)).sum().backward()
    grads = [p.grad for p in drafter.parameters()]
    drafter.zero_grad()
    return grads


@pytest.mark.usefixtures("one_torch_thread")
def test_one_graph_runs_all_layers_at_all_lengths_as_the_drafter_does(
    small_config, compiled_graphs
) -> None:
    drafter = Drafter(small_config, seed=2)
    fused = FusedDrafter(drafter, backend="aot_eager")
    # Less than a tile, whole tiles, and lengths equal to the hidden size's and slots' multiples.
    for seed, context in enumerate((30, 256, 300, 512)):
        case = drafts(small_config, drafter, context, seed)
        hidden, exact = run_fused(fused, *case), run_dense(drafter, *case)
        torch.testing.assert_close(hidden, exact, rtol=1e-4, atol=1e-5)
        mine, reference = gradients(drafter, hidden), gradients(drafter, exact)
        for grad, exact_grad in zip(mine, reference, strict=True):
            scale = exact_grad.abs().max()
            assert (grad - exact_grad).abs().max() <= 1e-4 * scale
    assert compiled_graphs() == 1


@pytest.mark.usefixtures("one_torch_thread")
def test_fused_layers_in_bfloat16_stay_near_float32(small_config) -> None:
    exact_drafter = Drafter(small_config, seed=2)
    drafter = Drafter(small_config, seed=2).bfloat16()
    case = drafts(small_config, exact_drafter, 200, 0)
    anchors, keep, *wide = case
    exact = run_dense(exact_drafter, *case)
    fused = FusedDrafter(drafter, backend="aot_eager")
    hidden = run_fused(fused, anchors, keep, *(x.bfloat16() for x in wide))
    assert hidden.dtype == torch.bfloat16
    # Roundings to 8 bits, a few tens of them one after another, add up as a random walk.
    error = (hidden.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.05


def test_context_that_is_no_whole_tiles_is_refused(small_config) -> None:
    drafter = Drafter(small_config)
    anchors, keep, features, embeds = drafts(small_config, drafter, 130, 0)
    mask = block_mask(anchors, keep, 130, SLOTS, "cpu")
    with pytest.raises(ValueError, match="130 tokens of context are no whole tiles"):
        FusedDrafter(drafter)(embeds, features, blocks.positions(130, anchors, SLOTS), mask)


@pytest.mark.parametrize(
    ("version", "fusion"),
    [("2.11.0+cu130", {"triton.mix_order_reduction": False}), ("2.13.0", {}), ("2.14.1", {})],
)
def test_a_fusion_that_torch_miscompiles_is_off_and_nothing_else(
    monkeypatch, version, fusion
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert layers._options(None) == fusion
    assert layers._options("reduce-overhead") == {"triton.cudagraphs": True, **fusion}


class Lock:
    """A lock that says when a thread comes to it."""

    def __init__(self, arrived: threading.Event) -> None:
        self._lock, self._arrived = threading.Lock(), arrived

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._arrived.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("warmed", [False, True])
def test_no_size_is_marked_while_another_thread_compiles_the_layers(
    small_config, monkeypatch, warmed
) -> None:
    torch._dynamo.reset()
    arrived, marked = threading.Event(), []
    second = None

    def mark(x: Tensor, dim: int) -> None:
        marked.append(torch.compiler.is_compiling())
        if threading.current_thread() is second:
            arrived.set()
        mark_static(x, dim)

    mark_static = layers.mark_static
    monkeypatch.setattr(layers, "mark_static", mark)
    monkeypatch.setattr(layers, "_FIRST_CALLS", Lock(arrived))

    def call(fused: FusedDrafter) -> Tensor:
        return run_fused(fused, *drafts(small_config, fused._drafter, 256, 0))

    def backend(graph, inputs):
        nonlocal second
        if second is None and torch.is_grad_enabled():
            second = threading.Thread(target=call, args=(fused[1],))
            second.start()
            assert arrived.wait(60)
        return graph.forward

    fused = [FusedDrafter(Drafter(small_config, seed=i), backend=backend) for i in range(2)]
    if warmed:  # as --warmup no_grad does it, which compiles nothing that a step can use
        with torch.no_grad():
            call(fused[0]), call(fused[1])
    call(fused[0])
    assert second is not None
    second.join()
    assert len(marked) > 0
    assert not any(marked)
