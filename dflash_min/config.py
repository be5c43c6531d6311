"""Every setting of the trainer: what a user may say (`TrainConfig`) and what is run (`Resolved`).

Nothing here imports torch, so that a command line is checked, and a wrong one refused, before the
seconds that importing torch takes. The number of visible GPUs is therefore passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import Final, Literal, TypeVar

from dflash_min.bounds import MOST, check_numbers
from dflash_min.errors import UsageError
from dflash_min.layout import DeviceChoice, DeviceType, Layout, deal, pick_device

__all__ = [
    "CompileMode",
    "DeviceChoice",
    "DeviceType",
    "Dynamic",
    "Layout",
    "ModelConfig",
    "NestedFx",
    "Resolved",
    "Shapes",
    "TrainConfig",
    "UsageError",
    "WarmupMode",
    "resolve",
]

WarmupMode = Literal["none", "no_grad", "inference_mode", "grad_forward", "grad"]
Dynamic = Literal["true", "auto", "false"]
WarmupDevices = Literal["all", "first"]
Shapes = Literal["varying", "buckets", "fixed"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
NestedFx = Literal["error", "fallback"]

# Tokens 0..255 are bytes; what text cannot say has ids of its own.
MASK_TOKEN: Final = 256
PAD_TOKEN: Final = 257
END_TOKEN: Final = 258
ROLE_TOKENS: Final = {"system": 259, "user": 260, "assistant": 261, "tool": 262}
VOCAB_SIZE: Final = 264

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the drafter and of the target it drafts for, which share width and heads."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    layers: int
    """Decoder layers of the drafter."""
    target_layers: int
    block_size: int
    """Slots per block, the anchor's included."""
    vocab: int = VOCAB_SIZE
    mask_token_id: int = MASK_TOKEN
    rope_theta: float = 1e6
    rms_eps: float = 1e-6
    target_layer_ids: tuple[int, ...] = ()
    """Target layers whose output is read; empty means the rule of `taps`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Ids of the target layers whose outputs are the features, in ascending order.

        Id i is the output of decoder layer i. The rule is that of the published drafters
        (`build_target_layer_ids` in z-lab/dflash): as many taps as drafter layers, uniform from
        layer 1 to the third from the end; a single tap is the middle layer.
        """
        if self.target_layer_ids:
            return self.target_layer_ids
        if self.layers == 1:
            return (self.target_layers // 2,)
        span = self.target_layers - 3 - 1
        return tuple(round(1 + i * span / (self.layers - 1)) for i in range(self.layers))


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the threaded DFlash trainer. Unset ones are chosen by device."""

    threads: int | None = None
    """Drafter threads, at most 512 (3, or as many as the layout names)."""
    layout: str | None = None
    """Targets+drafters, such as 5+3 and at most 512 of each, dealt round robin over the visible
    GPUs."""
    targets: tuple[str, ...] | None = None
    """Devices of the target threads, such as cuda:0,cuda:1."""
    drafters: tuple[str, ...] | None = None
    """Devices of the drafter threads."""
    device: DeviceChoice = "auto"
    """auto takes the GPUs if there are any."""

    warmup: WarmupMode = "grad"
    """What compiles attention before the threads start: nothing, a forward without gradients (two
    ways), a forward with gradients, or forward and backward (grad)."""
    warmup_lens: tuple[int, ...] | None = None
    """Sequence lengths of the warm-up (CPU 128,160; GPU 512,768)."""
    warmup_devices: WarmupDevices = "all"
    """Drafter devices that the warm-up runs on: each of them, or only the first drafter's."""

    seq_lens: tuple[int, ...] | None = None
    """Training lengths, taken in turn (CPU 192,224,256; GPU 1024,1536,2048)."""
    shapes: Shapes = "varying"
    """varying: as they are; buckets: padded to the next bucket; fixed: padded to the longest."""
    bucket_lens: tuple[int, ...] | None = None
    """Lengths for --shapes buckets (every second training length and the longest)."""
    anchors: int | Literal["vary"] | None = None
    """Anchors in a sequence (CPU 16, GPU 128); vary: one for each block's length of text."""
    batch_size: int = 1
    """Sequences in a drafter's batch."""

    dynamic: Dynamic = "true"
    """torch.compile's dynamic=: symbolic sizes from the start, after the first change, never."""
    compile_mode: CompileMode = "default"
    """torch.compile's mode= (inductor only)."""
    backend: str | None = None
    """torch.compile's backend= (CPU aot_eager, GPU inductor)."""
    nested_fx: NestedFx = "error"
    """A compiled call during an FX trace: torch's error, or silently run it uncompiled."""
    activation_checkpointing: bool = True
    """Recompute each drafter layer in the backward."""

    steps: int = 12
    """Optimiser steps."""
    seed: int = 0
    """Seed of weights, text windows and anchors."""
    lr: float = 6e-4
    """Peak learning rate of AdamW."""
    lr_warmup: float = 0.04
    """Share of the steps over which the learning rate rises; a cosine to 0 follows."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Global norm that gradients are clipped to."""
    loss_chunk: int | None = None
    """Query slots whose logits exist at one time (CPU 64, GPU 2048)."""
    queue_depth: int = 2
    """Batches that may wait between one target and one drafter."""
    eval_batches: int = 0
    """Batches of held-out text to evaluate after training, with attention not compiled."""

    data: tuple[Path, ...] | None = None
    """UTF-8 text or .jsonl files (text, or chat messages); Python's own sources if not given."""

    hidden: int | None = None
    """Width of target and drafter (CPU 64, GPU 512)."""
    heads: int | None = None
    """Query heads (CPU 4, GPU 8)."""
    kv_heads: int | None = None
    """Key and value heads (2)."""
    head_dim: int | None = None
    """Width of a head (CPU 16, GPU 64)."""
    mlp: int | None = None
    """Inner width of the MLPs (CPU 128, GPU 1536)."""
    layers: int = 2
    """Drafter layers."""
    target_layers: int = 6
    """Layers of the built-in target."""
    block_size: int | None = None
    """Slots per block (CPU 8, GPU 16)."""


@dataclass(frozen=True)
class Resolved:
    """A `TrainConfig` with every choice made: what the trainer runs. Built by `resolve`."""

    device: DeviceType
    layout: Layout
    model: ModelConfig
    warmup: WarmupMode
    warmup_lens: tuple[int, ...]
    warmup_devices: WarmupDevices
    seq_lens: tuple[int, ...]
    shapes: Shapes
    bucket_lens: tuple[int, ...]
    anchors: int | Literal["vary"]
    batch_size: int
    dynamic: Dynamic
    compile_mode: CompileMode
    backend: str
    nested_fx: NestedFx
    activation_checkpointing: bool
    steps: int
    seed: int
    lr: float
    lr_warmup: float
    weight_decay: float
    max_grad_norm: float
    loss_chunk: int
    queue_depth: int
    eval_batches: int
    data: tuple[Path, ...]

    @property
    def compile_dynamic(self) -> bool | None:
        """What `torch.compile(dynamic=...)` takes; None lets sizes turn symbolic on a change."""
        return {"true": True, "auto": None, "false": False}[self.dynamic]

    def length(self, step: int) -> int:
        """Tokens of text in each sequence of a step."""
        return self.seq_lens[step % len(self.seq_lens)]

    def padded_length(self, length: int) -> int:
        """Tokens in the tensors that carry `length` tokens of text."""
        match self.shapes:
            case "varying":
                return length
            case "buckets":
                return min(bucket for bucket in self.bucket_lens if bucket >= length)
            case "fixed":
                return max(self.seq_lens)

    def anchor_count(self, length: int) -> int:
        """Anchors in a sequence with `length` tokens of text."""
        if self.anchors == "vary":
            return max(1, length // self.model.block_size)
        return self.anchors


@dataclass(frozen=True)
class _Defaults:
    """What an unset setting becomes on one kind of device."""

    warmup_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    anchors: int
    backend: str
    loss_chunk: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    block_size: int


_DEFAULTS: Final[dict[DeviceType, _Defaults]] = {
    # A whole run fits in seconds on two cores. Inductor has no backward of flex attention on CPU.
    "cpu": _Defaults((128, 160), (192, 224, 256), 16, "aot_eager", 64, 64, 4, 2, 16, 128, 8),
    "cuda": _Defaults(
        (512, 768), (1024, 1536, 2048), 128, "inductor", 2048, 512, 8, 2, 64, 1536, 16
    ),
}


def resolve(config: TrainConfig, gpus: int) -> Resolved:
    """Fill in what the user left open, given the number of visible GPUs.

    Raises:
        UsageError: for any setting, or combination of settings, that cannot be run.
    """
    check_numbers(config)
    named = frozenset((*(config.targets or ()), *(config.drafters or ())))
    device = pick_device(config.device, named, gpus)
    defaults = _DEFAULTS[device]
    model = _model(config, defaults)
    warmup_lens = _lengths("--warmup-lens", config.warmup_lens, defaults.warmup_lens, model)
    seq_lens = _lengths("--seq-lens", config.seq_lens, defaults.seq_lens, model)
    backend = _or(config.backend, defaults.backend)
    if config.compile_mode != "default" and backend != "inductor":
        raise UsageError(
            f"--compile-mode {config.compile_mode} needs --backend inductor, not {backend}"
        )
    return Resolved(
        device=device,
        layout=deal(
            device,
            gpus,
            threads=config.threads,
            counts=config.layout,
            targets=config.targets,
            drafters=config.drafters,
        ),
        model=model,
        warmup=config.warmup,
        warmup_lens=warmup_lens,
        warmup_devices=config.warmup_devices,
        seq_lens=seq_lens,
        shapes=config.shapes,
        bucket_lens=_buckets(config, seq_lens, model),
        anchors=_or(config.anchors, defaults.anchors),
        batch_size=config.batch_size,
        dynamic=config.dynamic,
        compile_mode=config.compile_mode,
        backend=backend,
        nested_fx=config.nested_fx,
        activation_checkpointing=config.activation_checkpointing,
        steps=config.steps,
        seed=config.seed,
        lr=config.lr,
        lr_warmup=config.lr_warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        loss_chunk=_or(config.loss_chunk, defaults.loss_chunk),
        queue_depth=config.queue_depth,
        eval_batches=config.eval_batches,
        data=config.data or (),
    )


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _model(config: TrainConfig, defaults: _Defaults) -> ModelConfig:
    model = ModelConfig(
        hidden=_or(config.hidden, defaults.hidden),
        heads=_or(config.heads, defaults.heads),
        kv_heads=_or(config.kv_heads, defaults.kv_heads),
        head_dim=_or(config.head_dim, defaults.head_dim),
        mlp=_or(config.mlp, defaults.mlp),
        layers=config.layers,
        target_layers=config.target_layers,
        block_size=_or(config.block_size, defaults.block_size),
    )
    if model.heads % model.kv_heads:
        raise UsageError(f"--heads {model.heads} is no multiple of --kv-heads {model.kv_heads}")
    if model.head_dim % 2:
        raise UsageError(f"--head-dim must be even for rotary positions, got {model.head_dim}")
    # Distinct taps between layer 1 and the third from the end need this many layers.
    least = 1 if model.layers == 1 else model.layers + 3
    if model.target_layers < least:
        raise UsageError(
            f"--target-layers must be at least {least} for --layers {model.layers}, "
            f"got {model.target_layers}"
        )
    return model


def _lengths(
    flag: str, lens: tuple[int, ...] | None, default: tuple[int, ...], model: ModelConfig
) -> tuple[int, ...]:
    lens = _or(lens, default)
    if not lens:
        raise UsageError(f"{flag} names no length")
    if min(lens) < model.block_size:
        raise UsageError(
            f"{flag}: a sequence of {min(lens)} tokens is shorter than a block of "
            f"{model.block_size}"
        )
    if max(lens) > MOST:
        raise UsageError(f"{flag}: a sequence is at most {MOST} tokens long, got {max(lens)}")
    return lens


def _buckets(config: TrainConfig, seq_lens: tuple[int, ...], model: ModelConfig) -> tuple[int, ...]:
    ordered = sorted(set(seq_lens))
    default = tuple(sorted({*ordered[1::2], ordered[-1]}))
    if config.bucket_lens is not None and config.shapes != "buckets":
        raise UsageError("--bucket-lens needs --shapes buckets")
    buckets = _lengths("--bucket-lens", config.bucket_lens, default, model)
    if max(buckets) < max(seq_lens):
        raise UsageError(
            f"--bucket-lens: the longest bucket, {max(buckets)}, is shorter than the longest "
            f"training length, {max(seq_lens)}"
        )
    return buckets
