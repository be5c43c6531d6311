"""Which settings a resumed run may change, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from dflash_min.resolve import resolve
from dflash_min.saving import resuming

from .trainers import SIZES

BASE = TrainConfig(**SIZES, data=(Path("a.txt"),))
OF_TARGET = "; it is a size of the target: is --target another one?"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden": 32}, f"hidden 16, this run 32{OF_TARGET}"),
        ({"heads": 4}, f"heads 2, this run 4{OF_TARGET}"),
        ({"kv_heads": 2}, f"kv_heads 1, this run 2{OF_TARGET}"),
        ({"head_dim": 4}, f"head_dim 8, this run 4{OF_TARGET}"),
        ({"mlp": 8}, f"mlp 16, this run 8{OF_TARGET}"),
        ({"layers": 1}, "layers 2, this run 1"),
        ({"target_layers": 7}, "target_layer_ids 1,3, this run 1,4"),
        ({"block_size": 8}, "block_size 4, this run 8"),
        ({"seed": 1}, "seed 0, this run 1"),
        ({"seq_lens": (96,)}, "seq_lens 96,128, this run 96"),
        ({"shapes": "fixed"}, "shapes varying, this run fixed"),
        ({"anchors": "vary"}, "anchors 32, this run vary"),
        ({"batch_size": 2}, "batch_size 1, this run 2"),
        ({"accumulate": 2}, "accumulate 1, this run 2"),
        ({"lr": 1e-3}, "lr 0.0006, this run 0.001"),
        ({"lr_warmup": 0.5}, "lr_warmup 0.04, this run 0.5"),
        ({"weight_decay": 0.1}, "weight_decay 0.0, this run 0.1"),
        ({"max_grad_norm": float("inf")}, "max_grad_norm 1.0, this run none"),
        ({"threads": 2}, "drafters 3, this run 2; each trains on batches of its own"),
        ({"steps": 9}, "steps 3, this run 9; the learning rate's schedule depends on it"),
        ({"dtype": "bfloat16"}, "dtype float32, this run bfloat16"),
    ],
)
def test_what_changes_results_is_refused_by_name_and_both_values(changed, message):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    with pytest.raises(UsageError) as caught:
        resuming.check(old, new)
    assert str(caught.value) == f"--resume: the checkpoint has {message}"
    assert resuming.check(old, old) == []


def test_another_mask_token_is_refused():
    old = resuming.settings(resolve(BASE, 0))
    assert old["mask_token_id"] == 256
    with pytest.raises(UsageError) as caught:
        resuming.check(old, {**old, "mask_token_id": 300})
    assert str(caught.value) == "--resume: the checkpoint has mask_token_id 256, this run 300"


@pytest.mark.parametrize(
    "changed",
    [
        {"queue_depth": 5},
        {"warmup": "none"},
        {"warmup_lens": (64,)},
        {"warmup_devices": "first"},
        {"layout": "2+3"},
        {"eval_batches": 2},
        {"data": (Path("b.txt"),)},  # the same text, or its digest tells
    ],
)
def test_what_changes_no_result_may_differ(changed):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    assert resuming.check(old, new) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"backend": "eager"},
        {"loss_chunk": 7},
        {"activation_checkpointing": False},
        {"fused": ("mask",)},
    ],
)
def test_what_changes_rounding_is_said(changed):
    old, new = (resuming.settings(resolve(c, 0)) for c in (BASE, replace(BASE, **changed)))
    (note,) = resuming.check(old, new)
    name = next(iter(changed))
    was, now = (resuming.settings(resolve(c, 0))[name] for c in (BASE, replace(BASE, **changed)))
    said = "fused was none and is mask" if name == "fused" else f"{name} was {was} and is {now}"
    assert note == f"{said}: results go on equal within rounding, not bit for bit"
