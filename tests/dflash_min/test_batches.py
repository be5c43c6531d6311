"""Batches on their way to a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dflash_min import lanes
from dflash_min.batches import with_features

from .trainers import small_dense

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


@pytest.mark.parametrize(
    ("source", "target", "one"),
    [
        ("cuda:0", "cuda:1", True),
        ("cuda:1", "cuda:1", False),
        ("cpu", "cpu", False),
        ("cpu", "cuda:0", False),
    ],
)
def test_there_is_a_lane_between_two_gpus_alone(monkeypatch, source, target, one) -> None:
    made = []
    monkeypatch.setattr(lanes, "Lane", lambda *ends: made.append(ends) or "lane")
    found = lanes.between(torch.device(source), torch.device(target))
    assert found == ("lane" if one else None)
    assert made == ([(torch.device(source), torch.device(target))] if one else [])


def test_whoever_drafts_a_batch_receives_it() -> None:
    """Before anything else is done with it."""
    trainer = small_dense(threads=1)
    replica = trainer.replicas[0]

    class Received(Exception):  # noqa: N818
        pass

    class OnItsWay:
        def receive(self) -> None:
            raise Received

    for forward in (type(replica).forward, type(replica).forward_dense):
        with pytest.raises(Received):
            forward(replica, OnItsWay())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("busy", [0, 1])
def test_a_batch_goes_from_gpu_to_gpu_and_neither_waits_for_the_other(busy) -> None:
    here, there = devices = tuple(torch.device("cuda", i) for i in range(2))
    target, lane = doubling(here), lanes.between(here, there)
    matrix = torch.randn(8192, 8192, device=devices[busy])
    matrix @ matrix
    with torch.cuda.device(there):
        check(received(with_features(target, there, 7, 3, tensors(), lane=lane)), there)
        for _ in range(100):
            matrix @ matrix
        batch = with_features(target, there, 7, 3, tensors(), lane=lane)
        assert not torch.cuda.current_stream(devices[busy]).query()
        # The target's GPU computes the features first, and the drafter's has nothing else to do.
        idle = devices[1 - busy]
        torch.cuda.current_stream(idle).synchronize()
        assert not torch.cuda.current_stream(devices[busy]).query()
        assert batch.features_BSF.device == batch.input_ids_BS.device == there
        check(received(batch), there)


def received(batch):
    batch.receive()
    return batch
