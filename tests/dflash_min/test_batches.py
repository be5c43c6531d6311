"""Batches on their way to a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dflash_min.batches import with_features

CPU = torch.device("cpu")


def doubling(device: torch.device):
    """A target on a device whose features are its token ids, twice."""
    return SimpleNamespace(
        embed_VD=torch.empty(1, device=device),
        features=lambda ids: ids[..., None].float() * 2,
    )


def tensors() -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([[3, 1, 4, 0]])
    keep = torch.tensor([[True, False]])
    return ids, ids > 0, torch.tensor([[1, 0]]), keep


def check(batch, device: torch.device) -> None:
    parts = batch.input_ids_BS, batch.loss_mask_BS, batch.anchors_BN, batch.keep_BN
    for part, given in zip(parts, tensors(), strict=True):
        assert part.device.type == device.type
        assert torch.equal(part.cpu(), given)
    assert batch.features_BSF.flatten().tolist() == [6.0, 2.0, 8.0, 0.0]
    assert (batch.step, batch.tokens) == (7, 3)


def test_a_batch_is_text_anchors_and_the_targets_features() -> None:
    check(with_features(doubling(CPU), CPU, 7, 3, tensors()), CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_does_not_wait_for_what_its_device_has_to_do() -> None:
    device = torch.device("cuda", 0)
    target, matrix = doubling(device), torch.randn(8192, 8192, device=device)
    matrix @ matrix
    check(with_features(target, device, 7, 3, tensors()), device)
    for _ in range(100):
        matrix @ matrix
    batch = with_features(target, device, 7, 3, tensors())
    assert not torch.cuda.current_stream().query()
    check(batch, device)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_batch_comes_to_a_drafter_on_another_gpu_than_the_targets() -> None:
    here, there = (torch.device("cuda", i) for i in range(2))
    batch = with_features(doubling(here), there, 7, 3, tensors())
    assert batch.features_BSF.device == batch.input_ids_BS.device == there
    check(batch, there)
