"""Train the built-in decoder on text, so that it is worth drafting for.

`python -m dflash_min.pretrain --out TARGET --minutes 5`, then `python -m dflash_min.train --target
TARGET`. It learns to predict the next byte; nothing is downloaded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import TYPE_CHECKING, Any, Final

from dflash_min import cli, stopping
from dflash_min.bounds import MOST, check_bounds, check_heads, shared_bounds
from dflash_min.command import command
from dflash_min.config import ModelConfig, PretrainConfig
from dflash_min.environment import check_torch, cpu_threads, visible_gpus, within_memory
from dflash_min.errors import MemoryLimitError, NotFiniteError, SaveError, UsageError
from dflash_min.layout import DeviceType, pick_device
from dflash_min.saving import durable
from dflash_min.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_min.targets.pretraining import Pretraining, Progress, Recipe

PROG: Final = "dflash_min.pretrain"

_MINUTES: Final = 5.0
_MOST_MINUTES: Final = 60 * 24 * 365
_EVALUATIONS: Final = 10
_SMALLER: Final = "--batch-size, --seq-len or sizes of the model"


@dataclass(frozen=True)
class _ByDevice:
    """The settings that, unset, are chosen by device."""

    seq_len: int
    batch_size: int
    lr: float
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int


_DEFAULTS: Final[dict[DeviceType, _ByDevice]] = {
    "cpu": _ByDevice(
        seq_len=256, batch_size=8, lr=3e-3, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=384
    ),
    "cuda": _ByDevice(
        seq_len=1024, batch_size=32, lr=1e-3, hidden=512, heads=8, kv_heads=2, head_dim=64, mlp=1536
    ),
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
    chosen = _chosen(config, device)
    recipe = _recipe(config, chosen)
    text = Text.load(config.data or (), config.seed, recipe.seq_len + 1)
    if not text.holds_out:
        raise UsageError("there is too little text to hold some out for bits per byte")
    return Pretraining(_model(config, chosen), text, recipe, device)


def _chosen(config: PretrainConfig, device: DeviceType) -> _ByDevice:
    given = {each.name: getattr(config, each.name) for each in fields(_ByDevice)}
    return replace(
        _DEFAULTS[device], **{name: value for name, value in given.items() if value is not None}
    )


def _recipe(config: PretrainConfig, chosen: _ByDevice) -> Recipe:
    from dflash_min.targets.pretraining import Recipe

    minutes = _MINUTES if config.minutes is None else config.minutes
    return Recipe(
        steps=config.steps,
        seconds=60 * minutes if config.steps is None else None,
        seq_len=chosen.seq_len,
        batch_size=chosen.batch_size,
        lr=chosen.lr,
        lr_warmup=config.lr_warmup,
        weight_decay=config.weight_decay,
        eval_batches=config.eval_batches,
        evaluations=_EVALUATIONS,
        threads=cpu_threads() if config.threads is None else config.threads,
        seed=config.seed,
    )


def _model(config: PretrainConfig, chosen: _ByDevice) -> ModelConfig:
    # Layers and blocks are the drafter's: a target by itself has neither taps nor blocks.
    model = ModelConfig(
        hidden=chosen.hidden,
        heads=chosen.heads,
        kv_heads=chosen.kv_heads,
        head_dim=chosen.head_dim,
        mlp=chosen.mlp,
        target_layers=config.target_layers,
        layers=1,
        block_size=2,
    )
    check_heads(model)
    return model


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
    """Reports steps on stderr, and keeps the last one and those that were evaluated."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        self.evaluations: list[Progress] = []
        self._line = StatusLine()

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
        self._line.update(
            f"{progress.share:4.0%}  step {progress.step}  loss {progress.loss:.4f}{held_out}  "
            f"{progress.tokens / progress.seconds:,.0f} tokens/s",
            due=progress.bits_per_byte is not None,
        )

    def end(self) -> None:
        """Leave the rewritten line."""
        self._line.end()


if __name__ == "__main__":
    main()
