"""Checkpoints of one small tensor, and how they come to harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dflash_min.config import ModelConfig
from dflash_min.saving import checkpoint
from dflash_min.saving.checkpoint import Record

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = ModelConfig(
    hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=16, layers=2, target_layers=6, block_size=4
)


def record(step: int) -> Record:
    return Record(
        step=step, seed=7, target="", config=CONFIG, settings={"lr": 6e-4}, digests={"text": "ab"}
    )


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"norm.weight": torch.tensor([step + 0.1, float("nan"), -0.0])}


def optimizer(step: int) -> dict[str, object]:
    return {"state": {0: {"exp_avg": torch.full((3,), step / 3)}}, "groups": [{"lr": 1 / 3}]}


def save(out: Path, *steps: int) -> Path:
    for step in steps:
        path = checkpoint.write(
            out / checkpoint.FOLDER, record(step), weights(step), optimizer(step)
        )
    return path


def names(out: Path) -> set[str]:
    return {path.name for path in (out / checkpoint.FOLDER).iterdir()}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
