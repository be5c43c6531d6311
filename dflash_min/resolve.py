"""What is run: every choice made, and every combination that cannot be run refused.

Nothing here imports torch; the number of visible GPUs is therefore passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from dflash_min import tokens
from dflash_min.bounds import MOST, check_heads, check_numbers
from dflash_min.config import PIECES, ModelConfig
from dflash_min.errors import UsageError
from dflash_min.layout import deal, pick_device
from dflash_min.targets import choice as targets

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_min.config import (
        CompileMode,
        Dtype,
        Dynamic,
        Exchange,
        NestedFx,
        Shapes,
        TrainConfig,
        WarmupDevices,
        WarmupMode,
    )
    from dflash_min.layout import DeviceType, Layout

_T = TypeVar("_T")

_TARGET_LAYERS: Final = 6


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
    accumulate: int
    dynamic: Dynamic
    compile_mode: CompileMode
    backend: str
    nested_fx: NestedFx
    activation_checkpointing: bool
    dtype: Dtype
    fused: tuple[str, ...]
    """Of `config.PIECES`, in their order."""
    exchange: Exchange
    steps: int
    seed: int
    lr: float
    lr_warmup: float
    weight_decay: float
    max_grad_norm: float
    loss_chunk: int
    queue_depth: int
    eval_batches: int
    eval_every: int
    data: tuple[Path, ...]
    target: str
    """As in `targets.parse`, usable from any folder."""

    @property
    def compile_dynamic(self) -> bool | None:
        """What `torch.compile(dynamic=...)` takes; None lets sizes turn symbolic on a change."""
        return {"true": True, "auto": None, "false": False}[self.dynamic]

    def batch_number(self, step: int, rank: int, micro: int) -> int:
        """Number of a batch among all of the run: of drafter `rank`, `micro`-th of its step."""
        return (step * self.accumulate + micro) * len(self.layout.drafters) + rank

    def batch_place(self, number: int) -> tuple[int, int, int]:
        """Return step, rank and micro of a batch: the inverse of `batch_number`."""
        turn, rank = divmod(number, len(self.layout.drafters))
        step, micro = divmod(turn, self.accumulate)
        return step, rank, micro

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
    "cpu": _Defaults(
        warmup_lens=(128, 160),
        seq_lens=(192, 224, 256),
        anchors=16,
        backend="aot_eager",
        loss_chunk=64,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp=128,
        block_size=8,
    ),
    "cuda": _Defaults(
        warmup_lens=(512, 768),
        seq_lens=(1024, 1536, 2048),
        anchors=128,
        backend="inductor",
        loss_chunk=2048,
        hidden=512,
        heads=8,
        kv_heads=2,
        head_dim=64,
        mlp=1536,
        block_size=16,
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
    if config.eval_every and not config.eval_batches:
        raise UsageError(f"--eval-every {config.eval_every} needs --eval-batches")
    warmup_lens = _lengths("--warmup-lens", config.warmup_lens, defaults.warmup_lens, model)
    seq_lens = _lengths("--seq-lens", config.seq_lens, defaults.seq_lens, model)
    targets.check_length(config.target, "--seq-lens", max(seq_lens))
    anchors = _anchors(config, defaults, max(seq_lens))
    backend = _or(config.backend, defaults.backend)
    dtype, fused = _speed(config)
    if device == "cpu" and backend == "inductor":
        raise UsageError(
            "--backend inductor: torch compiles no backward of flex_attention for a CPU with it"
        )
    if config.compile_mode != "default" and backend != "inductor":
        raise UsageError(
            f"--compile-mode {config.compile_mode} needs --backend inductor, not {backend}"
        )
    layout = deal(
        device,
        gpus,
        threads=config.threads,
        counts=config.layout,
        targets=config.targets,
        drafters=config.drafters,
    )
    _check_exchange(config, layout)
    chosen: dict[str, Any] = {
        "device": device,
        "layout": layout,
        "model": model,
        "warmup_lens": warmup_lens,
        "seq_lens": seq_lens,
        "bucket_lens": _buckets(config, seq_lens, model),
        "anchors": anchors,
        "backend": backend,
        "activation_checkpointing": config.activation_checkpointing and "layers" not in fused,
        "dtype": dtype,
        "fused": fused,
        "loss_chunk": _or(config.loss_chunk, defaults.loss_chunk),
        "data": config.data or (),
        "target": targets.absolute(config.target),
    }
    # All others are settings as they are: a field that neither has is an error.
    as_said = {
        field.name: getattr(config, field.name)
        for field in fields(Resolved)
        if field.name not in chosen
    }
    return Resolved(**chosen, **as_said)


def _check_exchange(config: TrainConfig, layout: Layout) -> None:
    """Refuse to send gradients during the backward where that cannot be done."""
    if config.exchange != "during":
        return
    if config.accumulate > 1:
        raise UsageError(
            f"--exchange during needs --accumulate 1, not {config.accumulate}: a sum of several "
            "batches is not there before the last backward has ended"
        )
    gpus = [name for name in layout.drafters if name.startswith("cuda")]
    for name in gpus:
        if gpus.count(name) > 1:
            raise UsageError(f"--exchange during needs a GPU for each drafter; {name} has several")


def _speed(config: TrainConfig) -> tuple[Dtype, tuple[str, ...]]:
    """Return the dtype and the fused pieces, which a preset chooses where the user has not."""
    fast = config.preset == "fast"
    dtype: Dtype = _or(config.dtype, "bfloat16" if fast else "float32")
    fused = _or(config.fused, PIECES if fast else ())
    if fused == ("none",):
        fused = ()
    for piece in fused:
        if piece not in PIECES:
            raise UsageError(
                f"--fused takes pieces of {', '.join(PIECES)}, or none alone; not {piece}"
            )
    if config.fused is not None and "optimizer" in fused and dtype == "float32":
        raise UsageError("--fused optimizer needs --dtype bfloat16")
    return dtype, tuple(piece for piece in PIECES if piece in fused)


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _anchors(config: TrainConfig, defaults: _Defaults, longest: int) -> int | Literal["vary"]:
    said = config.anchors
    if isinstance(said, int) and said > longest:
        raise UsageError(
            f"--anchors {said} is more than the {longest} tokens of the longest sequence"
        )
    return _or(said, defaults.anchors)


def _model(config: TrainConfig, defaults: _Defaults) -> ModelConfig:
    given = targets.sizes(config.target)

    def size(flag: str, said: int | None, default: int) -> int:
        if given is None:
            return _or(said, default)
        fixed: int = getattr(given, flag.removeprefix("--").replace("-", "_"))
        if said is not None and said != fixed:
            raise UsageError(f"{flag} {said}: the target {config.target} has {fixed}")
        return fixed

    model = ModelConfig(
        hidden=size("--hidden", config.hidden, defaults.hidden),
        heads=size("--heads", config.heads, defaults.heads),
        kv_heads=size("--kv-heads", config.kv_heads, defaults.kv_heads),
        head_dim=size("--head-dim", config.head_dim, defaults.head_dim),
        mlp=size("--mlp", config.mlp, defaults.mlp),
        layers=config.layers,
        target_layers=size("--target-layers", config.target_layers, _TARGET_LAYERS),
        block_size=_or(config.block_size, defaults.block_size),
    )
    if given is not None:
        model = replace(
            model, vocab=given.vocab, rope_theta=given.rope_theta, rms_eps=given.rms_eps
        )
    mask = tokens.mask_token_id(config.target, model.vocab, config.mask_token_id)
    model = replace(model, mask_token_id=mask)
    check_heads(model)
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
