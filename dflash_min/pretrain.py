"""Train the built-in decoder on text, so that it is worth drafting for.

`python -m dflash_min.pretrain --out TARGET --minutes 5`, then `python -m dflash_min.train --target
TARGET`. It learns to predict the next byte; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import TYPE_CHECKING, Any, Final

from dflash_min import cli, stopping
from dflash_min.bounds import MOST, check_bounds, check_heads, shared_bounds
from dflash_min.command import command
from dflash_min.config import ModelConfig
from dflash_min.environment import check_torch, cpu_threads, visible_gpus, within_memory
from dflash_min.errors import MemoryLimitError, NotFiniteError, SaveError, UsageError
from dflash_min.layout import DeviceChoice, DeviceType, pick_device
from dflash_min.saving import durable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.targets.pretraining import Pretraining, Progress, Recipe

PROG: Final = "dflash_min.pretrain"

_MINUTES: Final = 5.0
_MOST_MINUTES: Final = 60 * 24 * 365
_EVALUATIONS: Final = 10
_SMALLER: Final = "--batch-size, --seq-len or sizes of the model"


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of the built-in target's training. Unset ones are chosen by device."""

    out: Path
    """Folder to save the target in; it must not be there, or be empty."""
    minutes: float | None = None
    """Length of the training (5, if --steps is not given)."""
    steps: int | None = None
    """Length of the training in steps: equal seeds then give equal weights."""
    data: tuple[Path, ...] | None = None
    """UTF-8 text or .jsonl files, as for dflash_min.train; Python's own sources if not given."""
    device: DeviceChoice = "auto"
    """auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads, each with a share of every batch (one for each core, at most 8)."""
    seed: int = 0
    """Seed of weights and text windows."""

    seq_len: int | None = None
    """Bytes in a window (CPU 256, GPU 1024)."""
    batch_size: int | None = None
    """Windows in a batch (CPU 8, GPU 32)."""
    lr: float | None = None
    """Peak learning rate of AdamW (CPU 3e-3, GPU 1e-3); a cosine to 0 over the whole training."""
    lr_warmup: float = 0.03
    """Share of the training over which the learning rate rises."""
    weight_decay: float = 0.1
    """Decoupled weight decay of the layers' matrices."""
    eval_batches: int = 8
    """Batches of held-out text for bits per byte."""

    hidden: int | None = None
    """Width (CPU 128, GPU 512)."""
    heads: int | None = None
    """Query heads (CPU 4, GPU 8)."""
    kv_heads: int | None = None
    """Key and value heads (2)."""
    head_dim: int | None = None
    """Width of a head (CPU 32, GPU 64)."""
    mlp: int | None = None
    """Inner width of the MLPs (CPU 384, GPU 1536)."""
    target_layers: int = 6
    """Decoder layers."""


_DEFAULTS: Final[dict[DeviceType, dict[str, Any]]] = {
    "cpu": {
        "seq_len": 256,
        "batch_size": 8,
        "lr": 3e-3,
        "hidden": 128,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "mlp": 384,
    },
    "cuda": {
        "seq_len": 1024,
        "batch_size": 32,
        "lr": 1e-3,
        "hidden": 512,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "mlp": 1536,
    },
}


@command(PROG)
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, train, save, and print one line of summary on stdout.

    After Ctrl-C, SIGTERM or SIGHUP what there is is saved, and the process ends by that signal.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend; with
            code 1 after one if the training diverges or the target cannot be saved.
    """
    config = cli.parse(
        PretrainConfig,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Train the built-in target, a small decoder of bytes, and save it.",
    )
    check_torch()
    _check(config)
    with within_memory(_SMALLER):
        pretraining = _build(config)
    durable.check_out(config.out, _stored_bytes(pretraining))
    display = Display()
    with stopping.asked_by_signals() as signalled:
        try:
            with within_memory(_SMALLER):
                pretraining.run(display, signalled.asked)
        except NotFiniteError as error:
            display.end()
            raise NotFiniteError(f"{error}; nothing is saved") from error
        except MemoryLimitError:
            display.end()
            raise
        display.end()
        said = _save(config, pretraining, display)
    if signalled.signal is None:
        cli.show(said)
    else:
        stopping.say(f"{PROG}: stopped by {signalled.signal.name}; {said}")
        stopping.end_by(signalled.signal)


def _check(config: PretrainConfig) -> None:
    """Refuse what cannot be run, as far as that is known without torch. Raises UsageError."""
    check_bounds(
        {
            "--steps": (config.steps, 1, 1 << 40),
            "--threads": (config.threads, 1, 512),
            "--seq-len": (config.seq_len, 2, MOST),
            "--batch-size": (config.batch_size, 1, MOST),
            "--eval-batches": (config.eval_batches, 1, MOST),
            **shared_bounds(config),
            "--seed": (config.seed, 0, (1 << 63) - 1),
        }
    )
    if config.minutes is not None and not 0 < config.minutes <= _MOST_MINUTES:
        raise UsageError(f"--minutes must be above 0 and at most a year, got {config.minutes}")
    if config.minutes is not None and config.steps is not None:
        raise UsageError("--minutes and --steps both say how long to train")
    if not 0 <= config.lr_warmup < 1:
        raise UsageError(f"--lr-warmup is a share from 0 to below 1, got {config.lr_warmup}")
    if config.data is not None and not config.data:
        raise UsageError("--data names no file")
    _check_out(config.out)


def _check_out(out: Path) -> None:
    """Refuse a folder that could not be written when minutes have gone. Raises UsageError."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out} is there already")
    durable.check_out(out, 0)


def _stored_bytes(pretraining: Pretraining) -> int:
    """Return what the weights take on the disk, to be had before minutes are spent."""
    tensors = pretraining.target.state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _build(config: PretrainConfig) -> Pretraining:
    from dflash_min.data import Text
    from dflash_min.targets.pretraining import Pretraining

    device = pick_device(config.device, frozenset(), visible_gpus())
    recipe = _recipe(config, device)
    text = Text.load(config.data or (), config.seed, recipe.seq_len + 1)
    if not text.holds_out:
        raise UsageError("there is too little text to hold some out for bits per byte")
    return Pretraining(_model(config, device), text, recipe, device)


def _recipe(config: PretrainConfig, device: DeviceType) -> Recipe:
    from dflash_min.targets.pretraining import Recipe

    minutes = _MINUTES if config.minutes is None else config.minutes
    return Recipe(
        steps=config.steps,
        seconds=60 * minutes if config.steps is None else None,
        seq_len=_chosen(config, device, "seq_len"),
        batch_size=_chosen(config, device, "batch_size"),
        lr=_chosen(config, device, "lr"),
        lr_warmup=config.lr_warmup,
        weight_decay=config.weight_decay,
        eval_batches=config.eval_batches,
        evaluations=_EVALUATIONS,
        threads=cpu_threads() if config.threads is None else config.threads,
        seed=config.seed,
    )


def _model(config: PretrainConfig, device: DeviceType) -> ModelConfig:
    sizes = {
        name: _chosen(config, device, name)
        for name in ("hidden", "heads", "kv_heads", "head_dim", "mlp")
    }
    # The drafter's own: a target by itself has neither taps nor blocks to speak of.
    model = ModelConfig(**sizes, target_layers=config.target_layers, layers=1, block_size=2)
    check_heads(model)
    return model


def _chosen(config: PretrainConfig, device: DeviceType, name: str) -> Any:  # noqa: ANN401
    said = getattr(config, name)
    return _DEFAULTS[device][name] if said is None else said


def _save(config: PretrainConfig, pretraining: Pretraining, display: Display) -> str:
    """Save the target and return what is to be said of it."""
    last = display.last
    if last is None:
        return "nothing is saved"
    from dflash_min.targets import folder as target_folder

    about: dict[str, Any] = {
        "steps": last.step,
        "tokens": last.tokens,
        "seconds": round(last.seconds, 1),
        "seed": config.seed,
        "data": [str(path.absolute()) for path in config.data or ()],
        "held_out_bits_per_byte": display.bits,
        "curve": [
            {"step": p.step, "tokens": p.tokens, "bits_per_byte": p.bits_per_byte}
            for p in display.evaluations
        ],
    }
    try:
        target_folder.save(pretraining.target, config.out, about)
    except OSError as error:
        raise SaveError(f"--out {config.out}: {error.strerror or error}") from error
    bits = "not evaluated" if display.bits is None else f"{display.bits:.3f} bits per byte held out"
    return f"{last.step} steps in {last.seconds:.0f} s, {bits}; saved {config.out}"


class Display:
    """Reports steps on stderr: a line rewritten on a terminal, elsewhere one an evaluation."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        self.evaluations: list[Progress] = []
        self._live = sys.stderr.isatty()

    @property
    def bits(self) -> float | None:
        """Bits per byte of the last evaluation."""
        return self.evaluations[-1].bits_per_byte if self.evaluations else None

    def __call__(self, progress: Progress) -> None:
        """Show a step that has just ended."""
        self.last = progress
        if progress.bits_per_byte is not None:
            self.evaluations.append(progress)
        held_out = "" if self.bits is None else f"  {self.bits:.3f} bits per byte held out"
        line = (
            f"{progress.share:4.0%}  step {progress.step}  loss {progress.loss:.4f}{held_out}  "
            f"{progress.tokens / progress.seconds:,.0f} tokens/s"
        )
        if self._live:
            self._show(f"\r{line}\x1b[K")
        elif progress.bits_per_byte is not None:
            self._show(f"{line}\n")

    def end(self) -> None:
        """Leave the rewritten line."""
        if self._live and self.last is not None:
            self._show("\n")

    def _show(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone takes no training along
            print(text, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
