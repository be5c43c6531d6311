"""Which model a drafter drafts for: how a target is named and found.

A target is named by one word, the value of `--target`: nothing for the built-in decoder with random
weights, a folder saved by `python -m dflash_min.pretrain`, a Hugging Face folder, or `hf:NAME` for
a model that transformers finds by name or path.

Nothing here imports torch when it is imported: the sizes of a named target are read first, so that
a command line that contradicts them is refused at once.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dflash_min.errors import UsageError
from dflash_min.huggingface.form import CONFIG_FILE, DRAFTER_CONFIG
from dflash_min.huggingface.named import Named
from dflash_min.saving import metrics
from dflash_min.saving.form import CHECKPOINTS, RECORD
from dflash_min.targets.interface import TargetSizes

if TYPE_CHECKING:
    import torch

    from dflash_min.config import Dtype, ModelConfig
    from dflash_min.layout import DeviceType
    from dflash_min.targets.interface import TargetModel

HF_PREFIX: Final = "hf:"


class _Mark(msgspec.Struct):
    """Tells a folder of the built-in target from one of Hugging Face's, and from a drafter's."""

    dflash_min: dict[str, object] | None = None
    drafter: object = msgspec.field(default=None, name=DRAFTER_CONFIG)


@dataclass(frozen=True)
class Spec:
    """A value of `--target`, told apart."""

    folder: Path | None = None
    """Of the built-in target."""
    hf: Named | None = None
    """Of Hugging Face."""


def parse(target: str) -> Spec:
    """Tell which kind of target is named.

    Raises:
        UsageError: for a folder that is not there, holds no model or a drafter, and for a Hugging
            Face model where transformers is not installed.
    """
    if not target:
        return Spec()
    model = Named(target.removeprefix(HF_PREFIX), word=target)
    if not model.name:
        raise UsageError(f"--target {target} names no model")
    folder = Path(model.name)
    if model.name == target or folder.exists():
        if _mark(folder, model).dflash_min is not None and model.name == target:
            return Spec(folder=folder)
    elif model.name.startswith((".", "/", "~")):
        raise model.refused("no such folder")
    elif model.name.count("/") > 1:
        raise model.refused(
            "no such folder, and no name that the Hub can have, which is NAME or OWNER/NAME"
        )
    if importlib.util.find_spec("transformers") is None:
        raise model.refused(
            "a Hugging Face model needs transformers: pip install 'compile-race-harness[hf]'"
        )
    return Spec(hf=model)


def absolute(target: str) -> str:
    """Return a target's name as it can be used from any folder."""
    path = target.removeprefix(HF_PREFIX)
    if not path or not Path(path).is_dir():
        return target
    return target[: len(target) - len(path)] + str(Path(path).absolute())


def sizes(target: str) -> TargetSizes | None:
    """Return what a target's config settles; None for the built-in one with random weights.

    Raises:
        UsageError: if there is no such target, or its config cannot be used.
    """
    spec = parse(target)
    if spec.hf is not None:
        from dflash_min.huggingface import config as hf_config

        return hf_config.sizes(spec.hf)
    if spec.folder is None:
        return None
    try:
        data = _read_config(spec.folder, Named(target, word=target))
        return msgspec.json.decode(data, type=TargetSizes)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--target: {spec.folder / CONFIG_FILE}: {error}") from error


def check_length(target: str, flag: str, length: int) -> None:
    """Refuse texts longer than a Hugging Face model has positions for.

    Args:
        target: a value of `--target`.
        flag: what sets the length.
        length: of the longest text, in tokens.

    Raises:
        UsageError: if the model's `max_position_embeddings` are fewer.
    """
    model = parse(target).hf
    if model is None:
        return
    from dflash_min.huggingface import config as hf_config

    most = hf_config.text_config(model).get("max_position_embeddings")
    if isinstance(most, int) and length > most:
        raise UsageError(f"{flag}: {length} tokens, and --target {target} has {most} positions")


def default_dtype(target: str, device: DeviceType) -> Dtype:
    """Return what a target's weights are for generation: as stored on a GPU, if that is bfloat16.

    CPUs are often slower in bfloat16, and float16 is none of the dtypes here: both are float32,
    which holds their numbers exactly.

    Raises:
        UsageError: if there is no such target.
    """
    model = parse(target).hf
    if device == "cpu" or model is None:
        return "float32"
    from dflash_min.huggingface import config as hf_config

    return hf_config.dtype(model)


def open_target(
    target: str,
    config: ModelConfig,
    *,
    seed: int,
    device: torch.device | str,
    dtype: Dtype = "float32",
) -> TargetModel:
    """Build a target on one device.

    Args:
        target: a value of `--target`.
        config: sizes of the drafter and, as `sizes` gives them, of the target.
        seed: of random weights, if `target` is empty.
        device: where it runs.
        dtype: of its weights and features.

    Raises:
        UsageError: if its files cannot be used.
    """
    import torch

    spec, precision = parse(target), getattr(torch, dtype)
    if spec.hf is not None:
        from dflash_min.huggingface import model as hf

        return hf.load(spec.hf, config, device, precision)
    if spec.folder is not None:
        from dflash_min.targets import folder as target_folder

        return target_folder.load(spec.folder, config, device).to(precision)
    from dflash_min.targets.builtin import Target

    return Target(config, seed=seed).to(device, precision)


def _mark(folder: Path, model: Named) -> _Mark:
    """Read whose folder it is. Raises UsageError if it is no model's, or a drafter's."""
    try:
        mark = msgspec.json.decode(_read_config(folder, model), type=_Mark)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--target: {folder / CONFIG_FILE}: {error}") from error
    if mark.drafter is not None:
        raise model.refused_drafter("a DFlash drafter")
    return mark


def _read_config(folder: Path, model: Named) -> bytes:
    try:
        return (folder / CONFIG_FILE).read_bytes()
    except FileNotFoundError as error:
        raise _refused(folder, model) from error
    except NotADirectoryError as error:
        raise model.refused("a file, not a folder") from error
    except OSError as error:
        raise model.refused(f"{CONFIG_FILE}: {error.strerror}") from error


def _refused(folder: Path, model: Named) -> UsageError:
    """Return what says why there is no config.json at a path."""
    if not folder.is_dir():
        return model.refused("no such folder")
    if (folder / RECORD).exists():
        return model.refused_drafter("a checkpoint of dflash_min.train, which is a drafter")
    if folder.name == CHECKPOINTS or any(
        (folder / name).exists() for name in (CHECKPOINTS, metrics.FILE)
    ):
        return model.refused_drafter("a run of dflash_min.train, which trains a drafter")
    return model.refused(
        f"no {CONFIG_FILE} in it; a target is a folder that `python -m dflash_min.pretrain` saved, "
        f"or a Hugging Face model's, with {CONFIG_FILE}, weights and tokenizer"
    )
