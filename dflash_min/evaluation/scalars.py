"""TensorBoard's scalars, where tensorboard is installed: `tensorboard --logdir OUT`."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER: Final = "tensorboard"


class Scalars:
    """Writes events. Its methods are for one thread at a time."""

    def __init__(self, folder: Path, done: int) -> None:
        """Open a file of events in a folder.

        Args:
            folder: made if it is not there.
            done: finished steps. TensorBoard drops what an earlier file has of later ones.
        """
        from torch.utils.tensorboard import SummaryWriter

        purge = done + 1 if done else None
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Write the numbers among the values as KIND/NAME, and the items of lists by their place.

        Args:
            step: finished optimiser steps.
            kind: "train" or "eval".
            values: what `metrics.jsonl` has; what is not finite or is no number is left out.
        """
        for name, value in values.items():
            items = enumerate(value, start=1) if isinstance(value, tuple | list) else [("", value)]
            for place, number in items:
                if isinstance(number, int | float) and math.isfinite(number):
                    tag = f"{kind}/{name}" + (f"/{place:02d}" if place else "")
                    self._writer.add_scalar(tag, number, step)

    def flush(self) -> None:
        """Put all that was written into the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def open_scalars(out: Path, done: int) -> Scalars | None:
    """Open the scalars of a run folder; None where tensorboard is not installed.

    To be called before threads start, since it imports tensorboard.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return None
    return Scalars(out / FOLDER, done)
