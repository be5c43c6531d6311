"""Whether a run may go on from a checkpoint: what must be the same, and what need not be.

Resuming promises the bits of a run that was never interrupted, so whatever changes what is learned
must be equal. Settings that no list here names are among these.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dflash_min.errors import UsageError
from dflash_min.targets.interface import TargetSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_min.data import Text
    from dflash_min.resolve import Resolved
    from dflash_min.targets.interface import TargetModel

_ROUNDING: Final = frozenset(
    {
        "activation_checkpointing",
        "backend",
        "compile_mode",
        "device",
        "dynamic",
        "fused",
        "loss_chunk",
        "nested_fx",
    }
)
"""What may change the order of additions and no more: a GPU's run can go on on a CPU."""

_FREE: Final = frozenset(
    {
        "data",  # the text is compared, not where it lies
        "eval_batches",
        "eval_every",
        "exchange",
        "layout",  # the number of drafters is compared
        "model",  # its fields are compared
        "queue_depth",
        "target",  # its weights are compared
        "warmup",
        "warmup_devices",
        "warmup_lens",
    }
)

_WHY: Final = {
    "steps": "; the learning rate's schedule depends on it",
    "drafters": "; each trains on batches of its own",
    "text": "; these are digests of the training text",
    "target": "; these are digests of the target's weights",
    **dict.fromkeys(
        TargetSizes.__struct_fields__, "; it is a size of the target: is --target another one?"
    ),
}
_ROWS: Final = 16
"""Rows of each of a target's weights that stand for it: all of it may be gigabytes."""


def settings(resolved: Resolved) -> dict[str, Any]:
    """Return what a checkpoint tells of its run's settings, as JSON has them."""
    run = {name: value for name, value in _fields(resolved).items() if name not in _FREE}
    chosen = {
        **_fields(resolved.model),
        **run,
        "target_layer_ids": resolved.model.taps,
        "drafters": len(resolved.layout.drafters),
    }
    if resolved.shapes != "buckets":
        del chosen["bucket_lens"]
    back: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(chosen))
    return back


def digests(text: Text, target: TargetModel) -> dict[str, str]:
    """Return what tells other text and another target, whatever their names.

    Weights, not features: those have other bits on another device.
    """
    digest = hashlib.sha256()
    for _, weight in target.named_parameters():
        rows = weight.detach().flatten(1) if weight.dim() > 1 else weight.detach().reshape(-1)
        rows = rows[:: max(1, len(rows) // _ROWS)].float().cpu()
        digest.update(rows.contiguous().numpy().tobytes())
    return {"text": text.digest, "target": digest.hexdigest()[:32]}


def check(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """Compare a checkpoint's settings, or digests, with this run's.

    Returns:
        A sentence for each difference that leaves the results equal but for rounding.

    Raises:
        UsageError: naming the first setting that changes results, and both values.
    """
    notes = []
    for name in sorted(saved.keys() | mine.keys()):
        old, new = saved.get(name), mine.get(name)
        if old == new:
            continue
        if name not in _ROUNDING:
            raise UsageError(
                f"--resume: the checkpoint has {name} {_text(old)}, this run {_text(new)}"
                f"{_WHY.get(name, '')}"
            )
        notes.append(
            f"{name} was {_text(old)} and is {_text(new)}: "
            "results go on equal within rounding, not bit for bit"
        )
    return notes


def _fields(instance: Any) -> dict[str, Any]:  # noqa: ANN401  # any dataclass
    return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}


def _text(value: object) -> str:
    if value is None or value == []:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
