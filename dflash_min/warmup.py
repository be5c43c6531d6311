"""Warm-up: attention is compiled here, one call after another, before any thread runs.

What must be the same as in training for a later call to find the compiled code: grad mode, whether
a backward follows, the device, symbolic sizes, and the number of anchors. The modes that leave one
out are kept, since they are what goes wrong in practice.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch._dynamo import config as dynamo_config

from dflash_min import observe
from dflash_min.batches import Batch, with_features
from dflash_min.pipeline import enter_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from dflash_min.config import WarmupMode
    from dflash_min.replica import Replica
    from dflash_min.resolve import Resolved
    from dflash_min.targets.interface import TargetModel


def warm_up(resolved: Resolved, target: TargetModel, replicas: Sequence[Replica]) -> None:
    """Call each drafter device's attention at each warm-up length, as `resolved.warmup` says.

    With `resolved.warmup_devices` "first" only the first drafter's device is called. The calling
    thread runs the drafters' own forward (and backward) on one replica of each device. Weights,
    optimiser state and random generators are left as they were, gradients unset.
    """
    if resolved.warmup == "none":
        return
    with observe.phase("warmup"):
        warmed = replicas if resolved.warmup_devices == "all" else replicas[:1]
        for replica in {replica.device: replica for replica in reversed(warmed)}.values():
            with _as_a_thread_of_the_trainer(replica.device, resolved):
                for length in resolved.warmup_lens:
                    batch = warmup_batch(resolved, target, replica.device, length)
                    _call(replica, batch, resolved.warmup)


def warmup_batch(
    resolved: Resolved, target: TargetModel, device: torch.device, length: int
) -> Batch:
    """Make a batch of made-up text with evenly spaced anchors, drawing no random number."""
    rows = resolved.batch_size
    count = resolved.anchor_count(length)
    ids_S = torch.arange(length) % 256
    anchors_N = torch.arange(count) * (length - 1) // count
    return with_features(
        target,
        device,
        0,
        length,
        (
            ids_S.repeat(rows, 1),
            torch.ones(rows, length, dtype=torch.bool),
            anchors_N.repeat(rows, 1),
            torch.ones(rows, count, dtype=torch.bool),
        ),
    )


def _call(replica: Replica, batch: Batch, mode: WarmupMode) -> None:
    with _grad_mode(mode):
        sums = replica.forward(batch)
    if mode == "grad":
        sums.weighted_sum.backward()  # type: ignore[no-untyped-call]
        replica.drafter.zero_grad(set_to_none=True)


def _grad_mode(mode: WarmupMode) -> AbstractContextManager[object]:
    match mode:
        case "no_grad":
            return torch.no_grad()
        case "inference_mode":
            return torch.inference_mode()
        case _:
            return torch.enable_grad()


@contextlib.contextmanager
def _as_a_thread_of_the_trainer(device: torch.device, resolved: Resolved) -> Iterator[None]:
    """Set the calling thread up as a drafter thread and give it its own settings back."""
    threads = torch.get_num_threads()
    nested_fx = dynamo_config.error_on_nested_fx_trace
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        enter_thread(device, resolved)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            if resolved.nested_fx == "fallback":
                dynamo_config.error_on_nested_fx_trace = nested_fx
