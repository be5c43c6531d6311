"""The folder of a run: what is saved where and when, by one process at a time.

    OUT/checkpoints/step-00000012/   see `dflash_min.saving.checkpoint`
    OUT/metrics.jsonl                see `dflash_min.saving.metrics`

A folder that holds a run is added to by resuming that run and by nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_min.errors import SaveError, UsageError
from dflash_min.saving import checkpoint, metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from dflash_min.config import SaveConfig
    from dflash_min.saving.checkpoint import Checkpoint, Record


@dataclass(frozen=True)
class Beginning:
    """Where a run begins, for as long as the run takes: without what a checkpoint weighs."""

    path: Path | None = None
    """The checkpoint it goes on from; None if it begins anew."""
    step: int = 0
    """Steps that are finished."""
    notes: list[str] = field(default_factory=list)
    """What to tell the user about it."""
    seen: frozenset[tuple[str, int, int]] = frozenset()
    """All checkpoints that were there, as `_seen` tells one from another."""


def find(save: SaveConfig) -> tuple[Beginning, Checkpoint | None]:
    """Return what a run begins from, and the checkpoint if there is one.

    Nothing is changed. A damaged checkpoint is passed over for an older one: the steps between are
    trained again, to the same bits.

    Raises:
        UsageError: if `save.out` holds a run that is not to be resumed, or none that can be.
    """
    if save.out is None:
        return Beginning(), None
    if not save.resume:
        _refuse_a_run(save.out)
        return Beginning(), None
    if not any((save.out / name).exists() for name in (metrics.FILE, checkpoint.FOLDER)):
        raise UsageError(f"--resume: {save.out} holds no run")
    seen = _seen(save.out)
    problems: list[str] = []
    for path in checkpoint.saved(save.out / checkpoint.FOLDER):
        try:
            found = checkpoint.read_whole(path)
        except checkpoint.DamagedError as error:
            problems.append(str(error))
            continue
        notes = [f"{problem}; going on from {path}, nothing is deleted" for problem in problems]
        return Beginning(path, found.step, notes, seen), found
    if problems:
        raise UsageError(
            f"--resume: {problems[0]}, and there is no older whole checkpoint; "
            "put the file back from a copy, or begin again in another --out"
        )
    note = f"{save.out} has no checkpoint yet: beginning with step 1"
    return Beginning(notes=[note], seen=seen), None


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
    def opened(cls, save: SaveConfig, beginning: Beginning) -> Iterator[RunFolder | None]:
        """Make the folder ready and keep other processes out; None without --out.

        Args:
            save: the settings.
            beginning: what `find` returned; metrics of later steps are dropped.

        Raises:
            UsageError: if another process trains in the folder or has done so since `find`, if the
                folder cannot be written to, or if a line of metrics.jsonl is damaged.
        """
        if save.out is None:
            yield None
            return
        try:
            save.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(save.out, os.O_RDONLY)
        except OSError as error:
            raise UsageError(f"--out {save.out}: {error.strerror}") from error
        try:
            _lock(lock, save.out)
            _refuse_changes(save, save.out, beginning)
            try:
                metrics.rewind(save.out / metrics.FILE, beginning.step)
                folder = cls(save, save.out, beginning.path)
            except OSError as error:
                raise UsageError(f"--out {error.filename or save.out}: {error.strerror}") from error
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
    newest = next(iter(checkpoint.saved(out / checkpoint.FOLDER)), None)
    # A run that ended in its warm-up has left an empty file.
    if newest is None and not (lines.is_file() and lines.stat().st_size):
        return
    upto = "" if newest is None else f", saved up to {newest.name}"
    raise UsageError(
        f"--out {out}: a run is there already{upto}; add --resume, or name another folder"
    )


def _refuse_changes(save: SaveConfig, out: Path, beginning: Beginning) -> None:
    """Refuse what another process has saved since `find`, which looks before the folder is ours."""
    if not save.resume:
        _refuse_a_run(out)
    elif _seen(out) != beginning.seen:
        raise UsageError(f"--resume: another process has trained in {out} meanwhile; start again")


def _seen(out: Path) -> frozenset[tuple[str, int, int]]:
    """Return name, inode and time of each checkpoint: one that is written anew has others."""
    stats = ((path, path.stat()) for path in checkpoint.saved(out / checkpoint.FOLDER))
    return frozenset((path.name, stat.st_ino, stat.st_mtime_ns) for path, stat in stats)


def _lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"--out {out}: another process is training there") from error
