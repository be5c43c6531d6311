"""What each of the trainer's settings may be: one that is not cannot be run, and is refused."""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from dflash_min.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_min.config import ModelConfig, PretrainConfig, SaveConfig, TrainConfig

MOST: Final = 1 << 20
"""Sizes at most: what is typed by mistake is refused before memory is asked for."""
_MOST_LAYERS: Final = 1024
_MOST_STEPS: Final = 1 << 40

Bounds = dict[str, tuple[int | float | None, int, float]]
"""For each flag its value, None if it is not set, and the least and the most that it may be."""


def check_bounds(bounds: Bounds) -> None:
    """Refuse the first value that is out of its bounds. Raises UsageError."""
    for flag, (value, least, most) in bounds.items():
        if value is None:
            continue
        if not value >= least:  # written so that nan fails too
            raise UsageError(f"{flag} must be at least {least}, got {value}")
        if value > most:
            bound = f"at most {most}" if isinstance(most, int) else "finite"
            raise UsageError(f"{flag} must be {bound}, got {value}")


def shared_bounds(config: TrainConfig | PretrainConfig) -> Bounds:
    """Return the bounds of what a drafter's and a target's training have in common."""
    return {
        "--lr": (config.lr, 0, sys.float_info.max),
        "--weight-decay": (config.weight_decay, 0, sys.float_info.max),
        "--hidden": (config.hidden, 1, MOST),
        "--heads": (config.heads, 1, MOST),
        "--kv-heads": (config.kv_heads, 1, MOST),
        "--mlp": (config.mlp, 1, MOST),
        "--head-dim": (config.head_dim, 2, MOST),
        "--target-layers": (config.target_layers, 1, _MOST_LAYERS),
    }


def check_heads(model: ModelConfig) -> None:
    """Refuse heads that do not go together. Raises UsageError."""
    if model.heads % model.kv_heads:
        raise UsageError(f"--heads {model.heads} is no multiple of --kv-heads {model.kv_heads}")
    if model.head_dim % 2:
        raise UsageError(f"--head-dim must be even for rotary positions, got {model.head_dim}")


def check_numbers(config: TrainConfig) -> None:
    """Refuse a number that is out of bounds whatever else is set. Raises UsageError."""
    bounds: Bounds = {
        # How many at most is for the layout to say.
        "--threads": (config.threads, 1, math.inf),
        "--steps": (config.steps, 1, _MOST_STEPS),
        "--batch-size": (config.batch_size, 1, MOST),
        "--accumulate": (config.accumulate, 1, MOST),
        "--loss-chunk": (config.loss_chunk, 1, MOST),
        "--queue-depth": (config.queue_depth, 1, MOST),
        "--eval-batches": (config.eval_batches, 0, _MOST_STEPS),
        "--eval-every": (config.eval_every, 0, _MOST_STEPS),
        **shared_bounds(config),
        "--layers": (config.layers, 1, _MOST_LAYERS),
        "--block-size": (config.block_size, 2, MOST),
        "--anchors": (None if config.anchors == "vary" else config.anchors, 1, MOST),
    }
    check_bounds(bounds)
    if not config.max_grad_norm > 0:
        raise UsageError(f"--max-grad-norm must be above 0, got {config.max_grad_norm}")
    if not 0 <= config.lr_warmup <= 1:
        raise UsageError(f"--lr-warmup is a share between 0 and 1, got {config.lr_warmup}")
    if not 0 <= config.seed < 2**63:
        raise UsageError(f"--seed must be between 0 and 2**63 - 1, got {config.seed}")
    if config.data is not None and not config.data:
        raise UsageError("--data names no file")


def check_saving(save: SaveConfig) -> None:
    """Refuse settings of what is saved that cannot be met. Raises UsageError."""
    check_bounds(
        {
            "--save-every": (save.save_every, 0, _MOST_STEPS),
            "--keep-checkpoints": (save.keep_checkpoints, 1, MOST),
        }
    )
    if save.out is None:
        for field in fields(save):
            if getattr(save, field.name) != field.default:
                raise UsageError(f"--{field.name.replace('_', '-')} needs --out")


def check_mask_token(index: int, vocab: int, meanings: Mapping[str, int]) -> None:
    """Refuse a mask token that is no row of the embedding, or has a meaning of its own.

    Args:
        index: the id.
        vocab: rows of the embedding.
        meanings: ids with a meaning, by name.

    Raises:
        UsageError: saying which of the two it is.
    """
    if index < 0:
        raise UsageError(f"--mask-token-id must be at least 0, got {index}")
    if index >= vocab:
        raise UsageError(f"--mask-token-id must be below the target's {vocab} ids, got {index}")
    for meaning, other in meanings.items():
        if index == other:
            raise UsageError(f"--mask-token-id {index} is the target's {meaning} token")
