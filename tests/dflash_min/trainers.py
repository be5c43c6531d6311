"""Small runs that several test modules of the trainer share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.resolve import resolve
from dflash_min.trainer import Trainer

if TYPE_CHECKING:
    from torch import nn

SIZES: dict[str, Any] = {
    "device": "cpu",
    "hidden": 16,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
    "mlp": 16,
    "block_size": 4,
    "anchors": 32,
    "loss_chunk": 48,
    "warmup_lens": (64, 80),
    "seq_lens": (96, 128),
    "steps": 3,
}


def small(save: SaveConfig | None = None, **settings: Any) -> Trainer:
    """Build a trainer that takes a second or two, with compiled attention."""
    return Trainer(resolve(TrainConfig(**{**SIZES, **settings}), gpus=0), save)


def small_dense(save: SaveConfig | None = None, **settings: Any) -> Trainer:
    """Build a trainer that compiles nothing: for what does not depend on attention."""
    trainer = small(save, warmup="none", **settings)
    for replica in trainer.replicas:
        replica.forward = replica.forward_dense
    return trainer


def flags(**settings: object) -> list[str]:
    """Write settings as arguments, the small sizes among them."""
    argv = []
    for name, value in {**SIZES, **settings}.items():
        words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        argv += [f"--{name.replace('_', '-')}", words]
    return argv


def ignore(*_: object) -> None:
    """Take what a run reports, where no test reads it."""


def state(module: nn.Module) -> dict[str, bytes]:
    """Return every weight's bits."""
    return {name: bits(value) for name, value in module.state_dict().items()}


def bits(value: Any) -> Any:
    """Return a tensor's bytes, of which numpy knows no bfloat16, or those of all in a container."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    return [bits(each) for each in value] if isinstance(value, list) else value


def workers() -> list[str]:
    """Return the names of the trainer's threads that are alive."""
    return [thread.name for thread in _workers()]


def others_end(*staying: str) -> None:
    """Wait until no thread of the trainer is alive but the calling one and those named."""
    for thread in _workers():
        if thread.name not in staying and thread is not threading.current_thread():
            thread.join(60)
            assert not thread.is_alive(), thread.name


def _workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith(("target-", "drafter-"))]
