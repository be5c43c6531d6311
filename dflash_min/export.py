"""A trained drafter in the form of the published ones: `python -m dflash_min.export CHECKPOINT`.

The form is that of z-lab's drafters on Hugging Face, which SGLang and vLLM load: a folder with
config.json, a Qwen3 config with `block_size`, `num_target_layers` and `dflash_config`, and
model.safetensors with the names of the drafter's state dict. Embedding and head are the target's
and are not in it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # the command line is built from the annotations
from typing import TYPE_CHECKING, Any, Final, Literal

import tyro  # noqa: TC002  # the same

from dflash_min import cli
from dflash_min.command import command
from dflash_min.config import ModelConfig
from dflash_min.errors import SaveError, UsageError
from dflash_min.huggingface.form import CONFIG_FILE, DRAFTER_CONFIG, DRAFTER_KEYS, WEIGHTS_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from dflash_min.model import Drafter

PROG: Final = "dflash_min.export"
ARCHITECTURE: Final = "DFlashDraftModel"

_POSITIONS: Final = 40960
"""Qwen3's longest text, which the format has a key for and the drafter does not depend on."""


@dataclass(frozen=True)
class ExportConfig:
    """What is exported, where to, and how."""

    checkpoint: tyro.conf.Positional[Path]
    """A run folder, of which the newest checkpoint is taken, or one checkpoint."""
    out: Path
    """Folder to write; it must not be there, or be empty."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the weights (default: as they were trained); the published drafters have bfloat16."""


@command(PROG)
def main(argv: Sequence[str] | None = None) -> None:
    """Export a checkpoint and print one line.

    Raises:
        SystemExit: with code 2 after one line on stderr for anything the user has to mend; with
            code 1 after one if the folder cannot be written.
    """
    config = cli.parse(
        ExportConfig,
        sys.argv[1:] if argv is None else argv,
        prog=PROG,
        description="Write a trained drafter as a Hugging Face folder.",
    )
    import torch

    from dflash_min.saving import checkpoint, durable

    found = checkpoint.read(config.checkpoint)
    durable.check_out(config.out, 0)
    dtype = None if config.dtype is None else getattr(torch, config.dtype)
    try:
        save(config.out, found.config, found.weights, dtype=dtype)
    except OSError as error:
        raise SaveError(f"--out {config.out}: {error.strerror or error}") from error
    cli.show(f"exported step {found.step} to {config.out}")


def save(
    out: Path, config: ModelConfig, weights: Mapping[str, Tensor], *, dtype: torch.dtype | None
) -> None:
    """Write a drafter as a folder, which is there whole or not at all.

    Args:
        out: must not be there, or be an empty folder.
        config: its sizes.
        weights: its state dict, on any device.
        dtype: that the weights get in the file; None leaves theirs.

    Raises:
        UsageError: if there is something at `out`, or `weights` are not a drafter's of these sizes.
        OSError: if it cannot be written.
    """
    import msgspec

    from dflash_min.saving import tensors as tensor_files
    from dflash_min.saving.durable import new_folder

    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"--out {out} is there already")
    _check_names(weights, config, "the checkpoint")
    tensors = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in weights.items()}
    described = to_config(config, tensors["norm.weight"].dtype)
    with new_folder(out) as aside:
        text = msgspec.json.format(msgspec.json.encode(described), indent=2)
        (aside / CONFIG_FILE).write_bytes(text + b"\n")
        tensor_files.write(tensors, aside / WEIGHTS_FILE)


def load(folder: Path) -> Drafter:
    """Build a drafter from an exported folder, or from a published drafter's.

    Raises:
        UsageError: naming the file and what is wrong with it, a missing or unknown tensor too.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = read_config(folder)
    path = folder / WEIGHTS_FILE
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: {error}") from error
    _check_names(weights, config, str(path))
    drafter = _without_weights(config)
    drafter.load_state_dict(weights, assign=True)
    return drafter


def to_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Return what config.json says of a drafter."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        **{key: getattr(config, field) for field, key in DRAFTER_KEYS.items()},
        DRAFTER_CONFIG: {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.taps),
        },
        # Transformers 4 reads the first, 5 the second.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * config.layers,
        "max_position_embeddings": _POSITIONS,
        "max_window_layers": config.layers,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "use_cache": True,
        "use_sliding_window": False,
    }


def read_config(folder: Path) -> ModelConfig:
    """Return the sizes in a drafter's config.json.

    Raises:
        UsageError: if it cannot be read, lacks one, or describes what this drafter does not do.
    """
    import msgspec

    path = folder / CONFIG_FILE
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        own = raw[DRAFTER_CONFIG]
        values = {field: raw[key] for field, key in DRAFTER_KEYS.items()}
        config = msgspec.convert(
            {
                **values,
                "mask_token_id": own["mask_token_id"],
                "target_layer_ids": own["target_layer_ids"],
                "rope_theta": (raw.get("rope_parameters") or raw)["rope_theta"],
            },
            ModelConfig,
        )
    except KeyError as error:
        raise UsageError(f"{path}: no {error.args[0]}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error
    if raw.get("attention_bias") or raw.get("rope_scaling"):
        key = "attention_bias" if raw.get("attention_bias") else "rope_scaling"
        raise UsageError(f"{path}: {key} {raw[key]} is more than this drafter does")
    return config


def _check_names(weights: Mapping[str, Tensor], config: ModelConfig, where: str) -> None:
    """Refuse tensors that are not those of a drafter of these sizes. Raises UsageError."""
    wanted = {name: t.shape for name, t in _without_weights(config).state_dict().items()}
    for problem, names in (
        ("missing", sorted(wanted.keys() - weights.keys())),
        ("unknown", sorted(weights.keys() - wanted.keys())),
    ):
        if names:
            count = "a tensor is" if len(names) == 1 else f"{len(names)} tensors are"
            raise UsageError(f"{where}: {count} {problem}: {names[0]}")
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise UsageError(f"{where}: {name} is {tuple(weights[name].shape)}, not {tuple(shape)}")


def _without_weights(config: ModelConfig) -> Drafter:
    import torch

    from dflash_min.model import Drafter

    with torch.device("meta"):
        return Drafter(config)


if __name__ == "__main__":
    main()
