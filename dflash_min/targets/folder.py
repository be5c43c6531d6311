"""The built-in target on disk: a folder in the form of a Hugging Face Qwen3 model.

The decoder is Qwen3's, so that config.json and model.safetensors have the keys and names that
transformers' Qwen3ForCausalLM has, and it loads them. A key of our own in config.json tells such a
folder from others and says how the model came about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import safetensors
import safetensors.torch

from dflash_min.config import END_TOKEN, PAD_TOKEN
from dflash_min.errors import UsageError
from dflash_min.huggingface.form import CONFIG_FILE, WEIGHTS_FILE
from dflash_min.saving import durable, tensors
from dflash_min.targets.builtin import Target
from dflash_min.targets.interface import TargetSizes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch
    from torch import Tensor

    from dflash_min.config import ModelConfig

_HEAD: Final = "lm_head."
_BODY: Final = "model."
_MOST_POSITIONS: Final = 32768
"""What config.json gives as the longest text, for other programs; nothing here depends on it."""


def save(target: Target, folder: Path, about: Mapping[str, object]) -> None:
    """Write a target to a new folder, whole or not at all.

    Args:
        target: on any device; its weights are stored in their dtype.
        folder: not there yet, or empty.
        about: how the model came about, kept in config.json: JSON values.

    Raises:
        OSError: if it cannot be written.
    """
    weights = {
        name if name.startswith(_HEAD) else _BODY + name: value.contiguous()
        for name, value in target.state_dict().items()
    }
    config = msgspec.json.encode(_hf_config(target.config, about))
    with durable.new_folder(folder) as aside:
        (aside / CONFIG_FILE).write_bytes(msgspec.json.format(config, indent=2) + b"\n")
        tensors.write(weights, aside / WEIGHTS_FILE)


def load(folder: Path, config: ModelConfig, device: torch.device | str) -> Target:
    """Build a target with the weights in a folder.

    Args:
        folder: that `save` wrote.
        config: with the target's sizes as `targets.sizes` gives them; the taps are the drafter's.
        device: where it runs.

    Raises:
        UsageError: if the weights are missing, damaged, or not those of the config.
    """
    path = folder / WEIGHTS_FILE
    try:
        weights = safetensors.torch.load_file(path, device=str(device))
    except (OSError, safetensors.SafetensorError) as error:
        raise UsageError(f"--target: {path}: {error}") from error
    target = Target(config)
    ours = {name.removeprefix(_BODY): value for name, value in weights.items()}
    _check(path, ours, target.state_dict())
    target.load_state_dict(ours)
    return target.to(device)


def _check(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise UsageError(f"--target: {path}: {name} is missing")
        if name not in wanted:
            raise UsageError(f"--target: {path}: {name} is no weight of this model")
        if found[name].shape != wanted[name].shape:
            shapes = tuple(found[name].shape), tuple(wanted[name].shape)
            raise UsageError(f"--target: {path}: {name} has shape {shapes[0]}, not {shapes[1]}")


def _hf_config(config: ModelConfig, about: Mapping[str, object]) -> dict[str, object]:
    sizes = msgspec.convert(config, TargetSizes, from_attributes=True)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **msgspec.to_builtins(sizes),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": _MOST_POSITIONS,
        "eos_token_id": END_TOKEN,
        "pad_token_id": PAD_TOKEN,
        "dflash_min": {"vocabulary": "bytes", **about},
    }
