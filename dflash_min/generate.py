"""Generate text with a trained drafter: `python -m dflash_min.generate CHECKPOINT --prompt TEXT`.

The text streams to stdout. One line on stderr then says how many tokens a run of the target
committed (tau), and how much faster that was than the same target decoding plainly.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import TYPE_CHECKING, Final

import tyro  # noqa: TC002  # the command line again

from dflash_min import cli, stopping
from dflash_min.bounds import MOST, check_bounds
from dflash_min.command import command
from dflash_min.config import Dtype  # noqa: TC001  # the command line again
from dflash_min.environment import check_torch, visible_gpus, within_memory
from dflash_min.errors import UsageError
from dflash_min.huggingface.form import CONFIG_FILE
from dflash_min.layout import DeviceChoice, pick_device
from dflash_min.targets import choice as targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_min.decoding.speculate import Decoding
    from dflash_min.model import Drafter
    from dflash_min.targets.interface import TargetModel
    from dflash_min.tokens import Tokens

PROG: Final = "dflash_min.generate"

_WARMUP_TOKENS: Final = 8
_SMALLER: Final = "--prompt or --max-tokens"


@dataclass(frozen=True)
class GenerateConfig:
    """What is generated, and with what."""

    checkpoint: tyro.conf.Positional[Path]
    """A run folder, of which the newest checkpoint is taken, one checkpoint, or a folder of
    dflash_min.export."""
    prompt: str
    """Text to go on from."""
    max_tokens: int = 200
    """Tokens to add at most; the end of the text may come before."""
    temperature: float = 0.0
    """0 takes the target's likeliest token; above, tokens are drawn."""
    seed: int = 0
    """Of what is drawn."""
    block_size: int | None = None
    """Slots per block (default: those the drafter was trained with)."""
    target: str = ""
    """What is drafted for, as for dflash_min.train; a checkpoint knows its own."""
    device: DeviceChoice = "auto"
    """auto takes a GPU if there is one."""
    dtype: Dtype | None = None
    """Of target and drafter (default: CPU float32; GPU bfloat16 for a target stored so)."""
    threads: int | None = None
    """CPU threads of an operation (default: 1 for the built-in target, of which a token is too
    little to share; otherwise torch's own number)."""


@dataclass(frozen=True)
class Loaded:
    """A drafter, its target and their tokens, on one device."""

    drafter: Drafter
    target: TargetModel
    tokens: Tokens


@command(PROG)
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, stream the text, and print one line of figures on stderr.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend.
    """
    config = cli.parse(
        GenerateConfig,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Generate text by speculative decoding with a trained drafter.",
    )
    _check(config)
    check_torch()
    with within_memory(_SMALLER):
        loaded = _load(config)
    with stopping.asked_by_signals() as signalled, within_memory(_SMALLER):
        line = _generate(config, loaded, signalled.asked)
    if signalled.signal is not None:
        stopping.say(f"{PROG}: stopped by {signalled.signal.name}; {line}")
        stopping.end_by(signalled.signal)
    cli.say(PROG, line)


def _check(config: GenerateConfig) -> None:
    check_bounds(
        {
            "--max-tokens": (config.max_tokens, 1, MOST),
            "--temperature": (config.temperature, 0, sys.float_info.max),
            "--block-size": (config.block_size, 2, MOST),
            "--seed": (config.seed, 0, (1 << 63) - 1),
            "--threads": (config.threads, 1, 512),
        }
    )
    try:
        config.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("--prompt is not UTF-8") from error
    if not config.checkpoint.is_dir():
        raise UsageError(f"{config.checkpoint}: no such folder")


def _load(config: GenerateConfig) -> Loaded:
    import torch

    from dflash_min import tokens

    device = pick_device(config.device, frozenset(), visible_gpus())
    drafter, target_name, seed = _drafter(config)
    sizes = targets.sizes(target_name)
    if sizes is not None:
        for name in ("hidden", "vocab", "target_layers"):
            mine, its = getattr(drafter.config, name), getattr(sizes, name)
            if mine != its:
                raise UsageError(
                    f"{config.checkpoint}: drafts for a target with {name} {mine}, "
                    f"and {target_name} has {its}"
                )
    if config.threads is not None or targets.parse(target_name).hf is None:
        torch.set_num_threads(config.threads or 1)
    dtype = config.dtype or targets.default_dtype(target_name, device)
    target = targets.open_target(target_name, drafter.config, seed=seed, device=device, dtype=dtype)
    drafter = drafter.to(target.embed_VD.device, target.embed_VD.dtype)
    return Loaded(drafter.eval(), target, tokens.of_target(target_name, drafter.config))


def _drafter(config: GenerateConfig) -> tuple[Drafter, str, int]:
    """Return the drafter, what it drafts for, and the seed of a target of random weights."""
    from dflash_min import export
    from dflash_min.model import Drafter
    from dflash_min.saving import checkpoint

    if (config.checkpoint / CONFIG_FILE).exists():
        if not config.target:
            raise UsageError(f"{config.checkpoint}: an exported drafter needs --target")
        return export.load(config.checkpoint), config.target, 0
    found = checkpoint.read(config.checkpoint)
    drafter = Drafter(found.config)
    drafter.load_state_dict(found.weights)
    return drafter, config.target or found.target, found.seed


def _generate(config: GenerateConfig, loaded: Loaded, stopped: Callable[[], bool]) -> str:
    """Stream the text and return the line of figures."""
    from dflash_min.decoding.text_stream import TextStream, harmless

    prompt = loaded.tokens.encode(config.prompt)
    for speculative in (True, False):  # what is done for the first time takes longer
        _decoding(config, loaded, prompt, speculative, _WARMUP_TOKENS).run()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    stream = TextStream(loaded.tokens)
    fast = _decoding(config, loaded, prompt, speculative=True)
    seconds = 0.0
    began = time.perf_counter()
    for committed in fast.stream():
        seconds += time.perf_counter() - began
        cli.show(harmless(stream.add(committed)), end="")
        if stopped():
            break
        began = time.perf_counter()
    cli.show(harmless(stream.end()))
    if stopped():
        return f"{len(fast.tokens)} tokens, {_tau(fast)}"
    plain = _decoding(config, loaded, prompt, speculative=False)
    began = time.perf_counter()
    plain.run()
    return _figures(fast, seconds, plain, time.perf_counter() - began)


def _decoding(
    config: GenerateConfig,
    loaded: Loaded,
    prompt: list[int],
    speculative: bool,  # noqa: FBT001
    max_tokens: int | None = None,
) -> Decoding:
    from dflash_min.decoding.speculate import BlockProposer, Decoding, Nothing, Sampler

    return Decoding(
        loaded.target,
        BlockProposer(loaded.drafter, loaded.target, block_size=config.block_size)
        if speculative
        else Nothing(),
        prompt,
        config.max_tokens if max_tokens is None else max_tokens,
        loaded.tokens.end_id,
        Sampler(config.temperature, config.seed),
    )


def _tau(decoding: Decoding) -> str:
    return "no cycle" if math.isnan(decoding.tau) else f"tau {decoding.tau:.2f}"


def _figures(fast: Decoding, seconds: float, plain: Decoding, plain_seconds: float) -> str:
    rate, plain_rate = len(fast.tokens) / seconds, len(plain.tokens) / plain_seconds
    line = (
        f"{len(fast.tokens)} tokens, {_tau(fast)}: {rate:,.1f} tokens/s, plain {plain_rate:,.1f}, "
        f"speed-up {rate / plain_rate:.2f}"
    )
    if fast.tokens != plain.tokens:
        pairs = zip(fast.tokens, plain.tokens, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        line += f"; by rounding the plain text differs from token {same + 1} on"
    return line


if __name__ == "__main__":
    main()
