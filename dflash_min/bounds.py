"""The bounds of the trainer's single settings: what is out of them cannot be run."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Final

from dflash_min.errors import UsageError

if TYPE_CHECKING:
    from dflash_min.config import TrainConfig

MOST: Final = 1 << 20
"""Sizes at most: what is typed by mistake is refused before memory is asked for."""
_MOST_LAYERS: Final = 1024
_MOST_STEPS: Final = 1 << 40


def check_numbers(config: TrainConfig) -> None:
    """Refuse a number that is out of bounds whatever else is set. Raises UsageError."""
    bounds: dict[str, tuple[int | float | None, int, float]] = {
        # How many at most is for the layout to say.
        "--threads": (config.threads, 1, math.inf),
        "--steps": (config.steps, 1, _MOST_STEPS),
        "--batch-size": (config.batch_size, 1, MOST),
        "--loss-chunk": (config.loss_chunk, 1, MOST),
        "--queue-depth": (config.queue_depth, 1, MOST),
        "--eval-batches": (config.eval_batches, 0, _MOST_STEPS),
        "--lr": (config.lr, 0, sys.float_info.max),
        "--weight-decay": (config.weight_decay, 0, sys.float_info.max),
        "--hidden": (config.hidden, 1, MOST),
        "--heads": (config.heads, 1, MOST),
        "--kv-heads": (config.kv_heads, 1, MOST),
        "--mlp": (config.mlp, 1, MOST),
        "--head-dim": (config.head_dim, 2, MOST),
        "--layers": (config.layers, 1, _MOST_LAYERS),
        "--target-layers": (config.target_layers, 1, _MOST_LAYERS),
        "--block-size": (config.block_size, 2, MOST),
        "--anchors": (None if config.anchors == "vary" else config.anchors, 1, MOST),
    }
    for flag, (value, least, most) in bounds.items():
        if value is None:
            continue
        if not value >= least:  # written so that nan fails too
            raise UsageError(f"{flag} must be at least {least}, got {value}")
        if value > most:
            bound = f"at most {most}" if isinstance(most, int) else "finite"
            raise UsageError(f"{flag} must be {bound}, got {value}")
    if not config.max_grad_norm > 0:
        raise UsageError(f"--max-grad-norm must be above 0, got {config.max_grad_norm}")
    if not 0 <= config.lr_warmup <= 1:
        raise UsageError(f"--lr-warmup is a share between 0 and 1, got {config.lr_warmup}")
    if not 0 <= config.seed < 2**63:
        raise UsageError(f"--seed must be between 0 and 2**63 - 1, got {config.seed}")
    if config.data is not None and not config.data:
        raise UsageError("--data names no file")
