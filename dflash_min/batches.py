"""The batches that a drafter trains on and is evaluated on: text, anchors, target features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dflash_min import blocks
from dflash_min.data import seeded

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_min.data import Text
    from dflash_min.lanes import Lane
    from dflash_min.resolve import Resolved
    from dflash_min.targets.interface import TargetModel


@dataclass(frozen=True)
class Batch:
    """What a drafter's step needs, on the drafter's device. Shapes: see the legend in model.py."""

    step: int
    tokens: int
    """Tokens of text, without padding."""
    input_ids_BS: Tensor
    loss_mask_BS: Tensor
    anchors_BN: Tensor
    keep_BN: Tensor
    features_BSF: Tensor
    arrived: torch.cuda.Event | None = None
    """After which the features are there, if they come from another GPU."""

    def receive(self) -> None:
        """Let the drafter's current stream wait for what is still on its way."""
        if self.arrived is not None:
            stream = torch.cuda.current_stream(self.features_BSF.device)
            stream.wait_event(self.arrived)
            # Their memory is the lane's: it must not be used again before this stream is done.
            self.features_BSF.record_stream(stream)


def training_batch(
    resolved: Resolved,
    text: Text,
    target: TargetModel,
    step: int,
    rank: int,
    *,
    micro: int = 0,
    lane: Lane | None = None,
) -> Batch:
    """Make a batch of one drafter's step: text, anchors, and the target's features.

    It depends on the seed and the three numbers only; no global random state is used.

    Args:
        resolved: the run.
        text: where the windows come from.
        target: the calling thread's own.
        step: from 0.
        rank: which drafter the batch is for.
        micro: which of the batches of its step it is.
        lane: from the target's GPU to the drafter's, if that is another one.
    """
    number = resolved.batch_number(step, rank, micro)
    length = resolved.length(step)
    input_ids_BS, loss_mask_BS = text.batch(
        number, length, resolved.batch_size, resolved.padded_length(length)
    )
    generator = torch.Generator().manual_seed(seeded(resolved.seed, "anchors", number))
    anchors_BN, keep_BN = blocks.sample_anchors(
        loss_mask_BS, resolved.anchor_count(length), generator
    )
    device = torch.device(resolved.layout.drafters[rank])
    tensors = input_ids_BS, loss_mask_BS, anchors_BN, keep_BN
    return with_features(target, device, step, length, tensors, lane=lane)


def held_out_batch(
    resolved: Resolved, text: Text, target: TargetModel, number: int, device: torch.device
) -> Batch:
    """Make batch `number` of held-out text, the same in every evaluation of a run."""
    length = resolved.length(number)
    input_ids_BS, loss_mask_BS = text.held_out_batch(number, length, resolved.batch_size)
    generator = torch.Generator().manual_seed(seeded(resolved.seed, "held out", number))
    anchors_BN, keep_BN = blocks.sample_anchors(
        loss_mask_BS, resolved.anchor_count(length), generator
    )
    return with_features(
        target, device, number, length, (input_ids_BS, loss_mask_BS, anchors_BN, keep_BN)
    )


def with_features(
    target: TargetModel,
    device: torch.device,
    step: int,
    length: int,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    lane: Lane | None = None,
) -> Batch:
    """Run the target on token ids and put everything on the drafter's device.

    Args:
        target: whose features are taken.
        device: the drafter's.
        step: from 0.
        length: tokens of text in a sequence.
        tensors: input_ids_BS, loss_mask_BS, anchors_BN and keep_BN, anywhere.
        lane: what the features take to the drafter's GPU; its computing stream, if not given.
    """
    input_ids_BS, loss_mask_BS, anchors_BN, keep_BN = tensors
    features_BSF, arrived = target.features(_sent(input_ids_BS, target.embed_VD.device)), None
    if lane is not None:
        features_BSF, arrived = lane.move(features_BSF)
    return Batch(
        step=step,
        tokens=input_ids_BS.shape[0] * length,
        input_ids_BS=_sent(input_ids_BS, device),
        loss_mask_BS=_sent(loss_mask_BS, device),
        anchors_BN=_sent(anchors_BN, device),
        keep_BN=_sent(keep_BN, device),
        features_BSF=features_BSF.to(device),
        arrived=arrived,
    )


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for what it does, which may be a drafter's whole step.

    From memory that is not pinned, a copy to a GPU waits for all work that was given to it before.
    Torch keeps pinned memory until copies from it are over.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
