"""The folder of a run: what is saved where and when, by one process at a time.

    OUT/checkpoints/step-00000012/   see `dflash_min.checkpoint`
    OUT/metrics.jsonl                see `dflash_min.metrics`

A folder that holds a run is added to by resuming that run and by nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

from dflash_min import checkpoint, metrics
from dflash_min.errors import SaveError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from dflash_min.checkpoint import Checkpoint, Record
    from dflash_min.config import SaveConfig


def find(save: SaveConfig) -> tuple[Checkpoint | None, list[str]]:
    """Return what a run begins from, None for nothing, and what to tell the user about it.

    Nothing is changed. A damaged checkpoint is passed over for an older one: the steps between are
    trained again, to the same bits.

    Raises:
        UsageError: if `save.out` holds a run that is not to be resumed, or none that can be.
    """
    if save.out is None:
        return None, []
    if not save.resume:
        _refuse_a_run(save.out)
        return None, []
    if not any((save.out / name).exists() for name in (metrics.FILE, checkpoint.FOLDER)):
        raise UsageError(f"--resume: {save.out} holds no run")
    notes: list[str] = []
    for path in checkpoint.saved(save.out / checkpoint.FOLDER):
        problem = checkpoint.damage(path)
        if problem is None:
            notes = [f"{note}; going on from {path}, nothing is deleted" for note in notes]
            return checkpoint.read(path), notes
        notes.append(problem)
    if notes:
        raise UsageError(
            f"--resume: {notes[0]}, and there is no older whole checkpoint; "
            "put the file back from a copy, or begin again in another --out"
        )
    return None, [f"{save.out} has no checkpoint yet: beginning with step 1"]


class RunFolder:
    """A run folder that this process writes to."""

    def __init__(self, save: SaveConfig, path: Path, newest: Path | None) -> None:
        """Use `RunFolder.opened`."""
        self.path = path
        self.newest = newest
        """The newest checkpoint, saved here or resumed from."""
        self._save = save
        self._metrics = metrics.Metrics(path / metrics.FILE)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, save: SaveConfig, resumed: Checkpoint | None) -> Iterator[RunFolder | None]:
        """Make the folder ready and keep other processes out; None without --out.

        Args:
            save: the settings.
            resumed: what the run begins from; metrics of later steps are dropped.

        Raises:
            UsageError: if another process trains in the folder, or it cannot be written to.
        """
        if save.out is None:
            yield None
            return
        newest = None if resumed is None else resumed.path
        try:
            save.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(save.out, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"--out {save.out}: {error.strerror}") from error
        try:
            _lock(lock, save.out)
            try:
                metrics.rewind(save.out / metrics.FILE, 0 if resumed is None else resumed.step)
                folder = cls(save, save.out, newest)
            except OSError as error:
                raise UsageError(f"--out {save.out}: {error.strerror}") from error
            with contextlib.closing(folder._metrics):
                yield folder
        finally:
            os.close(lock)

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after so many finished steps."""
        return bool(self._save.save_every) and step % self._save.save_every == 0

    def has(self, step: int, kind: str) -> bool:
        """Whether metrics.jsonl has a line of this kind for this step."""
        lines = metrics.read(self.path / metrics.FILE)
        return any((line["step"], line["kind"]) == (step, kind) for line in lines)

    def record(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Append a line to metrics.jsonl, as `Metrics.write` has it. Raises SaveError."""
        try:
            self._metrics.write(step, kind, values)
        except OSError as error:
            raise self._failed(self.path / metrics.FILE, error) from error

    def save(
        self, record: Record, weights: Mapping[str, Tensor], optimizer: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint, then delete those that are too many. Returns its path.

        Raises:
            SaveError: if it cannot be written; all earlier checkpoints are then as they were.
        """
        folder = self.path / checkpoint.FOLDER
        try:
            self._metrics.sync()
            path = checkpoint.write(folder, record, weights, optimizer)
            self.newest = path
            checkpoint.prune(folder, path, self._save.keep_checkpoints)
        except OSError as error:
            raise self._failed(folder / checkpoint.name(record.step), error) from error
        return path

    def _failed(self, path: Path, error: OSError) -> SaveError:
        newest = "none" if self.newest is None else f"still {self.newest}"
        return SaveError(
            f"{path} cannot be written: {error.strerror}; the newest checkpoint is {newest}"
        )


def _refuse_a_run(out: Path) -> None:
    lines = out / metrics.FILE
    # A run that ended in its warm-up has left an empty file.
    if not (out / checkpoint.FOLDER).exists() and not (lines.exists() and lines.stat().st_size):
        return
    newest = next(iter(checkpoint.saved(out / checkpoint.FOLDER)), None)
    upto = "" if newest is None else f", saved up to {newest.name}"
    raise UsageError(
        f"--out {out}: a run is there already{upto}; add --resume, or name another folder"
    )


def _lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"--out {out}: another process is training there") from error
