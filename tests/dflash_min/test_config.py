"""What the user may say, and what becomes of what was left open."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import dflash_min
from dflash_min.config import ModelConfig, TrainConfig
from dflash_min.errors import UsageError
from dflash_min.layout import Layout
from dflash_min.resolve import resolve

MODEL = ModelConfig(
    hidden=8, heads=2, kv_heads=1, head_dim=4, mlp=8, layers=5, target_layers=36, block_size=4
)


@pytest.mark.parametrize(
    ("target_layers", "taps"),
    [
        (24, (1, 6, 11, 16, 21)),
        (28, (1, 7, 13, 19, 25)),
        (32, (1, 8, 15, 22, 29)),
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (48, (1, 12, 23, 34, 45)),
        (64, (1, 16, 31, 46, 61)),
    ],
)
def test_taps_of_five_layers_are_those_of_the_published_drafters(target_layers, taps):
    assert replace(MODEL, target_layers=target_layers).taps == taps


def test_one_layer_taps_the_middle_and_named_taps_win():
    assert replace(MODEL, layers=1).taps == (18,)
    assert replace(MODEL, target_layer_ids=(3, 4)).taps == (3, 4)


def test_defaults_on_cpu():
    run = resolve(TrainConfig(), gpus=0)
    assert run.device == "cpu"
    assert run.layout == Layout(targets=("cpu",), drafters=("cpu",) * 3)
    assert (run.warmup, run.dynamic, run.shapes) == ("grad", "true", "varying")
    assert run.warmup_lens == (128, 160)
    assert run.seq_lens == (192, 224, 256)
    assert (run.anchors, run.backend, run.model.block_size) == (16, "aot_eager", 8)
    assert run.compile_dynamic is True


def test_defaults_on_gpus():
    run = resolve(TrainConfig(), gpus=1)
    assert run.device == "cuda"
    assert run.warmup_lens == (512, 768)
    assert run.seq_lens == (1024, 1536, 2048)
    assert run.backend == "inductor"
    assert (run.model.hidden, run.model.heads, run.model.head_dim) == (512, 8, 64)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_nothing_is_left_open(gpus):
    run = resolve(TrainConfig(), gpus)
    assert all(getattr(run, field.name) is not None for field in fields(run))


@pytest.mark.parametrize(
    ("config", "gpus", "targets", "drafters"),
    [
        # Fewer GPUs than threads: shared round robin, targets first.
        (TrainConfig(), 1, [0], [0, 0, 0]),
        (TrainConfig(), 2, [0], [1, 0, 1]),
        (TrainConfig(), 4, [0], [1, 2, 3]),
        # GPUs beyond one for each drafter are targets'.
        (TrainConfig(), 8, [0, 1, 2, 3, 4], [5, 6, 7]),
        (TrainConfig(threads=1), 3, [0, 1], [2]),
        (TrainConfig(layout="5+3"), 8, [0, 1, 2, 3, 4], [5, 6, 7]),
        (TrainConfig(layout="5+3", threads=3), 8, [0, 1, 2, 3, 4], [5, 6, 7]),
        (TrainConfig(layout="5+3"), 7, [0, 1, 2, 3, 4], [5, 6, 0]),
        (TrainConfig(layout="5+3"), 4, [0, 1, 2, 3, 0], [1, 2, 3]),
        (TrainConfig(layout="5+3"), 2, [0, 1, 0, 1, 0], [1, 0, 1]),
        (TrainConfig(layout="5+3"), 1, [0, 0, 0, 0, 0], [0, 0, 0]),
        (TrainConfig(layout="2+2"), 4, [0, 1], [2, 3]),
        (TrainConfig(layout="2+2"), 8, [0, 1], [2, 3]),
        (TrainConfig(layout="2+2", threads=2), 3, [0, 1], [2, 0]),
        (TrainConfig(targets=("cuda:0", "cuda:1"), drafters=("cuda:2",)), 4, [0, 1], [2]),
        # What is not named goes where nothing is named.
        (TrainConfig(drafters=("cuda:0", "cuda:2")), 4, [1, 3], [0, 2]),
        (TrainConfig(targets=("cuda:1",), threads=2), 2, [1], [0, 0]),
        (TrainConfig(targets=("cuda:0",), threads=2), 1, [0], [0, 0]),
        (TrainConfig(targets=("cuda:0",), drafters=("cuda:0", "cuda:0")), 1, [0], [0, 0]),
    ],
)
def test_layout_on_gpus(config, gpus, targets, drafters):
    layout = resolve(config, gpus).layout
    assert layout.targets == tuple(f"cuda:{i}" for i in targets)
    assert layout.drafters == tuple(f"cuda:{i}" for i in drafters)


def test_layout_on_cpu():
    assert resolve(TrainConfig(layout="2+4"), 0).layout == Layout(("cpu",) * 2, ("cpu",) * 4)
    on_cpu = TrainConfig(targets=("cpu",), drafters=("cpu", "cpu"))
    assert resolve(on_cpu, gpus=2).layout == Layout(("cpu",), ("cpu", "cpu"))
    assert resolve(TrainConfig(device="cpu"), gpus=2).device == "cpu"


def test_lengths_go_round_by_step_and_shapes_pad_them():
    varying = resolve(TrainConfig(), 0)
    assert [varying.length(step) for step in range(4)] == [192, 224, 256, 192]
    assert [varying.padded_length(n) for n in varying.seq_lens] == [192, 224, 256]
    buckets = resolve(TrainConfig(shapes="buckets"), 0)
    assert buckets.bucket_lens == (224, 256)
    assert [buckets.padded_length(n) for n in buckets.seq_lens] == [224, 224, 256]
    named = resolve(TrainConfig(shapes="buckets", bucket_lens=(512, 200)), 0)
    assert [named.padded_length(n) for n in named.seq_lens] == [200, 512, 512]
    fixed = resolve(TrainConfig(shapes="fixed"), 0)
    assert [fixed.padded_length(n) for n in fixed.seq_lens] == [256, 256, 256]


def test_anchors_vary_with_the_length_when_asked():
    fixed, vary = resolve(TrainConfig(anchors=5), 0), resolve(TrainConfig(anchors="vary"), 0)
    assert [fixed.anchor_count(n) for n in (64, 128)] == [5, 5]
    assert [vary.anchor_count(n) for n in (8, 64, 128)] == [1, 8, 16]


def test_dynamic_is_what_torch_takes():
    said = {name: resolve(TrainConfig(dynamic=name), 0) for name in ("true", "auto", "false")}
    assert [run.compile_dynamic for run in said.values()] == [True, None, False]


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        (TrainConfig(threads=0), 0, "--threads must be at least 1, got 0"),
        (TrainConfig(threads=-2), 0, "--threads must be at least 1, got -2"),
        (TrainConfig(steps=0), 0, "--steps must be at least 1"),
        (TrainConfig(anchors=0), 0, "--anchors must be at least 1"),
        (
            TrainConfig(anchors=65, seq_lens=(64, 48)),
            0,
            "--anchors 65 is more than the 64 tokens of the longest sequence",
        ),
        (TrainConfig(batch_size=0), 0, "--batch-size must be at least 1"),
        (TrainConfig(block_size=1), 0, "--block-size must be at least 2"),
        (TrainConfig(lr=float("nan")), 0, "--lr must be at least 0, got nan"),
        (TrainConfig(lr=float("inf")), 0, "--lr must be finite, got inf"),
        (TrainConfig(hidden=10**20), 0, f"--hidden must be at most 1048576, got {10**20}"),
        (TrainConfig(layers=1025), 0, "--layers must be at most 1024, got 1025"),
        (TrainConfig(warmup_lens=(2**21,)), 0, "a sequence is at most 1048576 tokens long"),
        (TrainConfig(threads=513), 0, "--threads: at most 512 drafters are possible, got 513"),
        (TrainConfig(max_grad_norm=0.0), 0, "--max-grad-norm must be above 0"),
        (TrainConfig(lr_warmup=1.5), 0, "--lr-warmup is a share between 0 and 1"),
        (TrainConfig(seed=-1), 0, "--seed must be between 0 and"),
        (TrainConfig(data=()), 0, "--data names no file"),
        (TrainConfig(heads=3), 0, "--heads 3 is no multiple of --kv-heads 2"),
        (TrainConfig(head_dim=5), 0, "--head-dim must be even"),
        (TrainConfig(target_layers=4), 0, "--target-layers must be at least 5 for --layers 2"),
        (TrainConfig(seq_lens=()), 0, "--seq-lens names no length"),
        (TrainConfig(seq_lens=(7, 64)), 0, "a sequence of 7 tokens is shorter than a block of 8"),
        (TrainConfig(warmup_lens=(4,)), 0, "--warmup-lens: a sequence of 4 tokens is shorter"),
        (TrainConfig(seq_lens=(15,)), 1, "a sequence of 15 tokens is shorter than a block of 16"),
        (TrainConfig(bucket_lens=(256,)), 0, "--bucket-lens needs --shapes buckets"),
        (
            TrainConfig(shapes="buckets", bucket_lens=(192,)),
            0,
            "the longest bucket, 192, is shorter than the longest training length, 256",
        ),
        (TrainConfig(compile_mode="max-autotune"), 0, "needs --backend inductor, not aot_eager"),
        (TrainConfig(backend="inductor"), 0, "--backend inductor: torch compiles no backward"),
        (TrainConfig(backend="inductor", device="cpu"), 1, "--backend inductor: torch compiles no"),
        (TrainConfig(device="cuda"), 0, "--device cuda: no GPU is visible"),
        (TrainConfig(device="cuda", layout="5+3"), 0, "--device cuda: no GPU is visible"),
        (
            TrainConfig(drafters=("cuda:5", "cuda:6", "cuda:7"), layout="5+3"),
            4,
            "--drafters names cuda:5, but the number of visible GPUs is 4",
        ),
        (TrainConfig(layout="5"), 0, "--layout '5' is not TARGETS+DRAFTERS"),
        (TrainConfig(layout="5+3+1"), 0, "is not TARGETS+DRAFTERS"),
        (TrainConfig(layout="\N{ARABIC-INDIC DIGIT FIVE}+3"), 0, "is not TARGETS+DRAFTERS"),
        (TrainConfig(layout="0+3"), 0, "at least one target and one drafter"),
        (TrainConfig(layout="5+3", threads=4), 8, "--threads says 4, --layout 5+3 says 3"),
        (
            TrainConfig(layout="1+3", drafters=("cuda:0",)),
            1,
            "--layout 1+3 says 3, --drafters says 1",
        ),
        (
            TrainConfig(layout="2+1", targets=("cuda:0",)),
            1,
            "the number of targets is not clear: --layout 2+1 says 2, --targets says 1",
        ),
        (TrainConfig(drafters=()), 1, "--drafters names no device"),
        (TrainConfig(drafters=("gpu0",)), 1, "'gpu0' is neither cpu nor cuda:N"),
        (TrainConfig(drafters=("cuda",)), 1, "'cuda' is neither cpu nor cuda:N"),
        (TrainConfig(drafters=("cuda:01",)), 2, "'cuda:01' is neither cpu nor cuda:N"),
        (
            TrainConfig(targets=("cuda:2",)),
            2,
            "--targets names cuda:2, but the number of visible GPUs is 2",
        ),
        (TrainConfig(targets=("cuda:0",)), 0, "the number of visible GPUs is 0"),
        (TrainConfig(targets=("cuda:0",), device="cpu"), 2, "cuda:0 does not fit a run on cpu"),
        (TrainConfig(targets=("cpu",), drafters=("cuda:0",)), 1, "cpu does not fit a run on cuda"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(config, gpus, message):
    with pytest.raises(UsageError) as caught:
        resolve(config, gpus)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_and_command_line_do_without_torch():
    code = (
        "import sys, dflash_min.config, dflash_min.cli, dflash_min.observe, dflash_min.train\n"
        "sys.exit('torch' in sys.modules)"
    )
    root = str(Path(dflash_min.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


OTHERS = {
    "threads": 2, "layout": "1+2", "targets": ("cpu", "cpu"), "drafters": ("cpu",),
    "device": "cuda", "warmup": "none", "warmup_lens": (100,), "warmup_devices": "first",
    "seq_lens": (100,), "shapes": "fixed", "bucket_lens": (300,), "anchors": 3, "batch_size": 2,
    "accumulate": 2, "dynamic": "auto", "compile_mode": "max-autotune", "backend": "eager",
    "nested_fx": "fallback", "activation_checkpointing": False, "preset": "fast",
    "dtype": "bfloat16", "fused": ("loss",), "exchange": "during",
    "steps": 5, "seed": 1, "lr": 1e-3, "lr_warmup": 0.5,
    "weight_decay": 0.1, "max_grad_norm": 2.0, "loss_chunk": 7, "queue_depth": 3,
    "eval_batches": 1, "eval_every": 1, "data": (Path("text"),), "target": "nowhere", "hidden": 32,
    "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 16, "layers": 1, "target_layers": 7,
    "mask_token_id": 263, "block_size": 4,
}  # fmt: skip
"""Another value of each setting than its default."""


def outcome(config):
    try:
        return resolve(config, gpus=0)
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_every_setting_changes_the_run_or_is_refused(name):
    base = TrainConfig(device="cpu")
    assert outcome(replace(base, **{name: OTHERS[name]})) != outcome(base)
