"""Let the target say the training text anew: `python -m dflash_min.regenerate`.

A drafter is to guess what its target will say, and the published ones were trained on responses
that the target had generated (DFlash: arXiv 2602.06036, appendix A.1). A target that continues text
has no responses: here it goes on from windows of the training text, and the windows with what it
added are the text that `dflash_min.train --data` takes. It is all that is done with any target: one
that answers is not asked anything.

The texts are written in the order in which their windows begin. Windows overlap, and the trainer
holds out the end of its text: so that end is another stretch of the source than what is trained on,
but for windows that reach over the border.
"""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import TYPE_CHECKING, Final

import msgspec

from dflash_min import cli, stopping
from dflash_min.bounds import MOST, check_bounds
from dflash_min.command import command
from dflash_min.config import Dtype, ModelConfig
from dflash_min.environment import check_torch, cpu_threads, visible_gpus, within_memory
from dflash_min.errors import SaveError, UsageError
from dflash_min.layout import DeviceChoice, pick_device
from dflash_min.saving import durable
from dflash_min.targets import choice as targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from dflash_min.data import Text
    from dflash_min.decoding.speculate import Sampler
    from dflash_min.targets.interface import TargetModel
    from dflash_min.tokens import Tokens

PROG: Final = "dflash_min.regenerate"

_MOST_TOKENS: Final = 1 << 15
"""Of a window or added to it: attention's memory grows with the square of their sum."""
_SMALLER: Final = "--batch-size, --prompt-tokens or --new-tokens"
_DROPPED: Final = "dropped that are not whole UTF-8"


@dataclass(frozen=True)
class RegenerateConfig:
    """What is written, and from what."""

    target: str
    """Folder of dflash_min.pretrain or of a Hugging Face model, or hf:NAME: what continues windows
    of text; it is not asked to answer."""
    out: Path
    """File to write, one {"text": ...} a line; it must not be there."""
    data: tuple[Path, ...] | None = None
    """Text to take windows of, as for dflash_min.train; Python's own sources if not given."""
    windows: int = 3072
    """Texts to make. One that is not whole UTF-8, such as one that begins or ends within a
    character, is dropped, and how many were is said at the end."""
    prompt_tokens: int = 128
    """Tokens of a window, which begin a text."""
    new_tokens: int = 128
    """Tokens that the target adds."""
    batch_size: int = 128
    """Texts that grow side by side."""
    temperature: float = 0.0
    """0 takes the target's likeliest token; above, tokens are drawn."""
    seed: int = 0
    """Of the windows and of what is drawn."""
    device: DeviceChoice = "auto"
    """auto takes a GPU if there is one."""
    dtype: Dtype | None = None
    """Of the target's weights (default: CPU float32; GPU those of a bfloat16 model as they are)."""
    threads: int | None = None
    """CPU threads, each with batches of its own (default: one for each core, at most 8)."""


@command(PROG)
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, write the texts, and print one line of summary on stdout.

    After Ctrl-C, SIGTERM or SIGHUP the texts that are done are kept, and the process ends by that
    signal.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend; with
            code 1 after one if the file cannot be written.
    """
    config = cli.parse(
        RegenerateConfig,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Let a target continue the training text, for a drafter to learn from.",
    )
    _check(config)
    check_torch()
    with within_memory(_SMALLER):
        target, text, tokens = _load(config)
    began = time.monotonic()
    with stopping.asked_by_signals() as signalled, within_memory(_SMALLER):
        made = list(_texts(config, target, text, tokens, signalled.asked))
        kept = [each for each in made if "\N{REPLACEMENT CHARACTER}" not in each[1]]
        _write(config.out, kept)
    dropped = f", {len(made) - len(kept)} {_DROPPED}" if len(kept) < len(made) else ""
    saved = f"saved {config.out}" if kept else "nothing is saved"
    said = f"{len(kept)} texts in {time.monotonic() - began:.0f} s{dropped}; {saved}"
    if signalled.signal is None:
        if not kept:
            raise SaveError(said)
        cli.show(said)
    else:
        stopping.say(f"{PROG}: stopped by {signalled.signal.name}; {said}")
        stopping.end_by(signalled.signal)


def _check(config: RegenerateConfig) -> None:
    check_bounds(
        {
            "--windows": (config.windows, 1, 1 << 40),
            "--prompt-tokens": (config.prompt_tokens, 2, _MOST_TOKENS),
            "--new-tokens": (config.new_tokens, 1, _MOST_TOKENS),
            "--batch-size": (config.batch_size, 1, MOST),
            "--temperature": (config.temperature, 0, sys.float_info.max),
            "--seed": (config.seed, 0, (1 << 63) - 1),
            "--threads": (config.threads, 1, 512),
        }
    )
    if config.data is not None and not config.data:
        raise UsageError("--data names no file")
    if config.out.exists():
        raise UsageError(f"--out {config.out} is there already")
    durable.check_out(config.out, 0)


def _load(config: RegenerateConfig) -> tuple[TargetModel, Text, Tokens]:
    from dflash_min import tokens
    from dflash_min.data import Text

    sizes = targets.sizes(config.target)
    if sizes is None:
        raise UsageError("--target: random weights have nothing to say")
    longest = config.prompt_tokens + config.new_tokens
    targets.check_length(config.target, "--prompt-tokens and --new-tokens", longest)
    # The taps are a drafter's; none is read here.
    model = ModelConfig(
        layers=1, block_size=2, **{name: getattr(sizes, name) for name in sizes.__struct_fields__}
    )
    device = pick_device(config.device, frozenset(), visible_gpus())
    dtype = config.dtype or targets.default_dtype(config.target, device)
    target = targets.open_target(config.target, model, seed=0, device=device, dtype=dtype)
    known = tokens.of_target(config.target, model)
    text = Text.load(config.data or (), config.seed, config.prompt_tokens, known)
    return target, text, known


def _write(out: Path, texts: Iterable[tuple[int, str]]) -> None:
    """Write texts as JSON lines by their windows' places.

    The file is there whole or not at all, and not for no text, of which nothing could be learned.
    Raises SaveError.
    """
    ordered = sorted(texts, key=itemgetter(0))
    if not ordered:
        return
    try:
        with durable.new_file(out) as file:
            for _, text in ordered:
                file.write(msgspec.json.encode({"text": text}) + b"\n")
    except OSError as error:
        raise SaveError(f"--out {out}: {error.strerror or error}") from error


def _texts(
    config: RegenerateConfig,
    target: TargetModel,
    text: Text,
    tokens: Tokens,
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, str]]:
    """Yield where windows begin and how they go on."""

    def batch(number: int) -> list[tuple[int, str]]:
        if stopped():
            return []
        begin = number * config.batch_size
        count = min(config.batch_size, config.windows - begin)
        prompts_BS, _ = text.batch(number, config.prompt_tokens, count)
        samplers = [
            Sampler(config.temperature, text_seed(config.seed, begin + row)) for row in range(count)
        ]
        rows = continued(target, prompts_BS, config.new_tokens, samplers, tokens.end_id)
        starts = text.starts(number, config.prompt_tokens, count)
        return [(start, tokens.decode(ids)) for start, ids in zip(starts, rows, strict=True)]

    from dflash_min.decoding.speculate import Sampler

    with _workers(config, target) as workers:
        for said in workers.map(batch, range(math.ceil(config.windows / config.batch_size))):
            yield from said
            if stopped():
                workers.shutdown(cancel_futures=True)
                return


def _workers(config: RegenerateConfig, target: TargetModel) -> ThreadPoolExecutor:
    """Give each batch on a CPU a thread: an operation on small tensors is none to share."""
    import torch

    if target.embed_VD.device.type == "cuda":
        return ThreadPoolExecutor(1)
    count = cpu_threads() if config.threads is None else config.threads
    each = max(1, torch.get_num_threads() // count)
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(each,))


def text_seed(seed: int, number: int) -> int:
    """Return the seed of what is drawn in one text."""
    from dflash_min.data import seeded

    return seeded(seed, "regenerate", number)


def continued(
    target: TargetModel, prompts_BS: Tensor, count: int, samplers: Sequence[Sampler], end_id: int
) -> list[list[int]]:
    """Let the target add `count` tokens to each prompt, or fewer where it ends the text.

    Args:
        target: what goes on.
        prompts_BS: token ids.
        count: tokens to add at most.
        samplers: one for each prompt.
        end_id: what ends a text, and is left out.

    Returns:
        the ids of each prompt and what was added.
    """
    import torch

    length, cache = prompts_BS.shape[1], target.cache(len(prompts_BS))
    new_BL = prompts_BS.to(target.embed_VD.device)
    parts = [new_BL]
    for position in range(length, length + count):
        logits_BLV, _ = target.extend(new_BL, cache)
        chosen = _chosen(logits_BLV[:, -1], samplers, position)
        new_BL = torch.tensor(chosen, device=new_BL.device)[:, None]
        parts.append(new_BL)
    rows: list[list[int]] = torch.cat(parts, dim=1).tolist()
    return [row[: row.index(end_id, length)] if end_id in row[length:] else row for row in rows]


def _chosen(logits_BV: Tensor, samplers: Sequence[Sampler], position: int) -> list[int]:
    """Choose the next token of each text, for the likeliest ones in a single transfer."""
    if all(sampler.temperature == 0 for sampler in samplers):
        return samplers[0].choose(logits_BV, position)
    return [
        sampler.choose(logits_V[None], position)[0]
        for sampler, logits_V in zip(samplers, logits_BV, strict=True)
    ]


if __name__ == "__main__":
    main()
