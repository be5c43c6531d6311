"""The flags of the built-in trainer that warm up what its threads missed."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dflash_min.cli import to_argv
from dflash_min.config import TrainConfig
from dflash_min.resolve import Resolved
from harness.certificate.model import Suggestion

#: Causes that a warm-up of the trainer's own kind, forward and backward with gradients, removes.
_FORWARD_AND_BACKWARD = frozenset({"CR101", "CR102", "CR203", "CR207", "CR208"})
_SHAPES = frozenset({"CR201", "CR202", "CR205"})
_DEVICES = frozenset({"CR204"})


def warmup_flags(
    config: TrainConfig, chosen: Resolved, codes: Collection[str]
) -> tuple[Suggestion, TrainConfig] | None:
    """Flags for what was found, and the settings with them; None if none would help.

    Args:
        config: the trainer's settings.
        chosen: the same with every choice made.
        codes: the causes found, and those that notes are instances of.
    """
    found = set(codes)
    changed: dict[str, Any] = {}
    if found & _FORWARD_AND_BACKWARD and config.warmup != "grad":
        changed["warmup"] = "grad"
    if found & _SHAPES:
        lens = {*chosen.warmup_lens, *(chosen.padded_length(n) for n in chosen.seq_lens)}
        if lens != set(chosen.warmup_lens):
            changed["warmup_lens"] = tuple(sorted(lens))
    if found & _DEVICES and config.warmup_devices != "all":
        changed["warmup_devices"] = "all"
    if not changed:
        return None
    better = replace(config, **changed)
    flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in changed.items()]
    why = "Flags of the trainer that warm up what was missed."
    return Suggestion(lines=(" ".join(flags),), why=why, argv=tuple(to_argv(better))), better


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
