"""Every setting that a user may give, and the sizes of the models.

What was left open, `dflash_min.resolve` fills in for the trainer and `dflash_min.pretrain` for a
target's training. Nothing here imports torch, so that a command line
is checked, and a wrong one refused, before the seconds that importing torch takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import Final, Literal

from dflash_min.layout import DeviceChoice  # noqa: TC001  # the command line again

WarmupMode = Literal["none", "no_grad", "inference_mode", "grad_forward", "grad"]
Dynamic = Literal["true", "auto", "false"]
WarmupDevices = Literal["all", "first"]
Shapes = Literal["varying", "buckets", "fixed"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
NestedFx = Literal["error", "fallback"]
Preset = Literal["incident", "fast"]
Dtype = Literal["float32", "bfloat16"]
Exchange = Literal["after", "during"]

PIECES: Final = ("mask", "layers", "loss", "optimizer")
"""What can be fused (see `dflash_min.fused`)."""

# Tokens 0..255 are bytes; what text cannot say has ids of its own.
MASK_TOKEN: Final = 256
PAD_TOKEN: Final = 257
END_TOKEN: Final = 258
ROLE_TOKENS: Final = {"system": 259, "user": 260, "assistant": 261, "tool": 262}
VOCAB_SIZE: Final = 264


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
    """Drafter threads, at most 512 (default: 3, or as many as the layout names)."""
    layout: str | None = None
    """Targets+drafters, such as 5+3 and at most 512 of each, dealt round robin over the visible
    GPUs (default: --threads drafters, and a target for each GPU that these leave)."""
    targets: tuple[str, ...] | None = None
    """Devices of the target threads, such as cuda:0,cuda:1 (default: as --layout deals them)."""
    drafters: tuple[str, ...] | None = None
    """Devices of the drafter threads (default: as --layout deals them)."""
    device: DeviceChoice = "auto"
    """auto takes the GPUs if there are any."""

    warmup: WarmupMode = "grad"
    """What compiles attention before the threads start: nothing, a forward without gradients (two
    ways), a forward with gradients, or forward and backward (grad)."""
    warmup_lens: tuple[int, ...] | None = None
    """Sequence lengths of the warm-up (default: CPU 128,160; GPU 512,768)."""
    warmup_devices: WarmupDevices = "all"
    """Drafter devices that the warm-up runs on: each of them, or only the first drafter's."""

    seq_lens: tuple[int, ...] | None = None
    """Training lengths, taken in turn (default: CPU 192,224,256; GPU 1024,1536,2048)."""
    shapes: Shapes = "varying"
    """varying: as they are; buckets: padded to the next bucket; fixed: padded to the longest."""
    bucket_lens: tuple[int, ...] | None = None
    """Lengths for --shapes buckets (default: every second training length and the longest)."""
    anchors: int | Literal["vary"] | None = None
    """Anchors in a sequence (default: CPU 16, GPU 128); vary: one for each block's length of
    text."""
    batch_size: int = 1
    """Sequences in a drafter's batch."""
    accumulate: int = 1
    """Batches of a drafter in one optimiser step, their gradients summed."""

    dynamic: Dynamic = "true"
    """torch.compile's dynamic=: symbolic sizes from the start, after the first change, never."""
    compile_mode: CompileMode = "default"
    """torch.compile's mode= (inductor only)."""
    backend: str | None = None
    """torch.compile's backend= (default: CPU aot_eager, GPU inductor)."""
    nested_fx: NestedFx = "error"
    """A compiled call during an FX trace: torch's error, or silently run it uncompiled."""
    activation_checkpointing: bool = True
    """Recompute each drafter layer in the backward; fused layers never are."""
    preset: Preset = "incident"
    """incident: the structure in which races of compilation occur. fast: bfloat16 and every fused
    piece. --dtype and --fused outrank it."""
    dtype: Dtype | None = None
    """Of weights and activations (default: float32; with --preset fast bfloat16); float32 masters
    of bfloat16 weights are what is trained."""
    fused: tuple[str, ...] | None = None
    """Pieces of a step to fuse, of mask, layers, loss and optimizer, which needs --dtype bfloat16;
    none turns all off (default: none; with --preset fast all)."""
    exchange: Exchange = "after"
    """When drafters on several GPUs send each other their gradients: after the backward, or in
    buckets during it, as they fill, which needs --accumulate 1."""

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
    """Query slots whose logits exist at one time (default: CPU 64, GPU 2048)."""
    queue_depth: int = 2
    """Places for batches between one target and one drafter; one in work keeps its place while
    others wait there."""
    eval_batches: int = 0
    """Batches of held-out text to evaluate after training, with attention not compiled."""
    eval_every: int = 0
    """Evaluate after every so many steps too (0: only after training)."""

    data: tuple[Path, ...] | None = None
    """UTF-8 text or .jsonl files (text, or chat messages); Python's own sources if not given.
    Sequences are cut from all of it in a row, whatever document or conversation ends there."""

    target: str = ""
    """Folder of dflash_min.pretrain or of a Hugging Face model, or hf:NAME: what to draft for.
    A built-in decoder with random weights if not given."""

    hidden: int | None = None
    """Width of target and drafter (default: CPU 64, GPU 512)."""
    heads: int | None = None
    """Query heads (default: CPU 4, GPU 8)."""
    kv_heads: int | None = None
    """Key and value heads (default: 2)."""
    head_dim: int | None = None
    """Width of a head (default: CPU 16, GPU 64)."""
    mlp: int | None = None
    """Inner width of the MLPs (default: CPU 128, GPU 1536)."""
    layers: int = 2
    """Drafter layers."""
    target_layers: int | None = None
    """Layers of the target (default: 6)."""
    mask_token_id: int | None = None
    """Id in a block's slots after its anchor (default: 256; for a Hugging Face target a reserved
    one)."""
    block_size: int | None = None
    """Slots per block (default: CPU 8, GPU 16)."""


@dataclass(frozen=True)
class SaveConfig:
    """What is saved, and whether a saved run goes on."""

    out: Path | None = None
    """Run folder for checkpoints and metrics.jsonl, made if it is not there. Without it nothing is
    written."""
    save_every: int = 0
    """Steps from one checkpoint to the next; 0 saves only at the end, or when stopped."""
    keep_checkpoints: int = 3
    """Newest checkpoints to keep."""
    resume: bool = False
    """Go on from the newest whole checkpoint in --out, to the same bits as without a break."""


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of the built-in target's training. Unset ones are chosen by device."""

    out: Path
    """Folder to save the target in; it must not be there, or be empty."""
    minutes: float | None = None
    """Length of the training (default: 5, if --steps is not given)."""
    steps: int | None = None
    """Length of the training in steps: equal seeds then give equal weights."""
    data: tuple[Path, ...] | None = None
    """UTF-8 text or .jsonl files, as for dflash_min.train; Python's own sources if not given."""
    device: DeviceChoice = "auto"
    """auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads, each with a share of every batch (default: one for each core, at most 8)."""
    seed: int = 0
    """Seed of weights and text windows."""

    seq_len: int | None = None
    """Bytes in a window (default: CPU 256, GPU 1024)."""
    batch_size: int | None = None
    """Windows in a batch (default: CPU 8, GPU 32)."""
    lr: float | None = None
    """Peak learning rate of AdamW (default: CPU 3e-3, GPU 1e-3); a cosine to 0 over the whole
    training."""
    lr_warmup: float = 0.03
    """Share of the training over which the learning rate rises."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the layers' matrices."""
    eval_batches: int = 8
    """Batches of held-out text for bits per byte."""

    hidden: int | None = None
    """Width (default: CPU 128, GPU 512)."""
    heads: int | None = None
    """Query heads (default: CPU 4, GPU 8)."""
    kv_heads: int | None = None
    """Key and value heads (default: 2)."""
    head_dim: int | None = None
    """Width of a head (default: CPU 32, GPU 64)."""
    mlp: int | None = None
    """Inner width of the MLPs (default: CPU 384, GPU 1536)."""
    target_layers: int = 6
    """Decoder layers."""
