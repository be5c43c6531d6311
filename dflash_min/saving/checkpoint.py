"""A training state on disk: written whole or not at all, and read back with every bit checked.

A checkpoint is a folder `OUT/checkpoints/step-00000012`, named after the number of finished steps:

    checkpoint.json   sizes, settings, seed, digest of the text, and the sha256 of the other files
    drafter.pt        the weights, by the names of the drafter's state dict
    optimizer.pt      `Optimizer.state_dict()`: moments, and float32 masters of narrower weights

The step is the position in everything else: in the learning rate's schedule, in the data, whose
batches are given out by number, and in all that is random, since nothing is drawn from a generator
that lives on but from (seed, name, number) (`data.seeded`). So no generator's state is saved, and
batches that were in flight are made again from their numbers.

A checkpoint is written under another name, flushed to the disk and renamed, which POSIX does at
once or not at all. Older ones are deleted only then.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import torch

from dflash_min.config import ModelConfig  # noqa: TC001  # msgspec reads the annotations
from dflash_min.errors import UsageError
from dflash_min.saving import form
from dflash_min.saving.durable import new_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

FOLDER: Final = form.CHECKPOINTS
"""Where a run folder has its checkpoints."""

_RECORD: Final = form.RECORD
_WEIGHTS: Final = "drafter.pt"
_OPTIMIZER: Final = "optimizer.pt"
_FORMAT: Final = 1
_DELETING: Final = ".deleting-"
"""How the name of a folder begins that is being deleted."""
_UNFINISHED: Final = re.compile(
    rf"\.step-\d{{8,}}\.[0-9a-f]{{8}}\.part|{re.escape(_DELETING)}step-\d{{8,}}(-\d+)?"
)
"""Names of our own that a killed process leaves: of `durable.new_folder`, and `_DELETING`."""


class DamagedError(UsageError):
    """A checkpoint that cannot be trusted; the message names the file."""


class FormatError(UsageError):
    """A checkpoint that another version of this program wrote."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `checkpoint.json` says, besides the digests."""

    step: int
    """Finished optimiser steps."""
    seed: int
    target: str
    """The value of --target, as usable from any folder."""
    config: ModelConfig
    settings: dict[str, Any]
    """What changes results, as `resuming.settings` has it."""
    digests: dict[str, str]
    """What stands for the text and for the target's weights, as `resuming.digests` has it."""


class _File(Record, frozen=True, kw_only=True):
    """`checkpoint.json`."""

    format: int = _FORMAT
    sha256: dict[str, str]


class _Format(msgspec.Struct):
    """What every format of `checkpoint.json` says."""

    format: int


@dataclass(frozen=True)
class Checkpoint:
    """What was read from a checkpoint's folder, on the CPU."""

    path: Path
    record: Record
    weights: dict[str, Tensor]
    """The drafter's, by the names of its state dict."""
    sha256: Mapping[str, str] = field(repr=False)
    checked: frozenset[str] = frozenset()
    """Files that have been read and compared with their digests."""

    @property
    def step(self) -> int:
        """Finished optimiser steps."""
        return self.record.step

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.record.seed

    @property
    def config(self) -> ModelConfig:
        """Sizes of the drafter and of its target."""
        return self.record.config

    @property
    def target(self) -> str:
        """The value of --target, as usable from any folder."""
        return self.record.target

    def optimizer(self) -> dict[str, Any]:
        """Read the optimiser's state, for `Optimizer.load_state_dict`.

        Raises:
            DamagedError: if the file is not as it was written.
        """
        if _OPTIMIZER not in self.checked:
            _check(self.path / _OPTIMIZER, self.sha256)
        return _load(self.path / _OPTIMIZER)


def write(
    folder: Path, record: Record, weights: Mapping[str, Tensor], optimizer: Mapping[str, Any]
) -> Path:
    """Save a state as the newest checkpoint of a folder, durably, and return its path.

    What an interrupted save left there is cleaned away first. A damaged checkpoint in the way is
    kept under another name.

    Args:
        folder: of all checkpoints of a run; made if it is not there.
        record: goes into `checkpoint.json`.
        weights: the drafter's state dict, on any device.
        optimizer: `Optimizer.state_dict()`: tensors and numbers only.

    Raises:
        OSError: if it cannot be written. All earlier checkpoints are then as they were.
    """
    _clean(folder)
    path = folder / name(record.step)
    if path.exists():
        path.rename(_free(folder / f"damaged-{path.name}"))
    with new_folder(path) as aside:
        sha256 = {
            _WEIGHTS: _save(dict(weights), aside / _WEIGHTS),
            _OPTIMIZER: _save(dict(optimizer), aside / _OPTIMIZER),
        }
        sha256[_RECORD] = _digest(record)
        file = _File(**msgspec.structs.asdict(record), sha256=sha256)
        (aside / _RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(file)))
    return path


def name(step: int) -> str:
    """Return the name of the checkpoint after so many finished steps."""
    return f"step-{step:08d}"


def prune(folder: Path, newest: Path, keep: int) -> None:
    """Delete what is older than the `keep` checkpoints that end in `newest`, which is durable."""
    older = [path for path in saved(folder) if _number(path) < _number(newest)]
    for path in older[keep - 1 :]:
        # Renamed first, so that a half-deleted checkpoint has no checkpoint's name.
        gone = path.rename(_free(folder / f"{_DELETING}{path.name}"))
        shutil.rmtree(gone, ignore_errors=True)


def saved(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a folder, whole or damaged, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=_number, reverse=True)


def latest(out: Path) -> Path | None:
    """Return the newest whole checkpoint of a run folder; None if there is none.

    Every file of it has been read and compared with its digest; `damage` says what is wrong with
    those that were passed over.

    Raises:
        FormatError: if a newer one is of another format.
    """
    return next((path for path in saved(out / FOLDER) if damage(path) is None), None)


def damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, naming the file; None if it is whole.

    Raises:
        FormatError: if it is of another format.
    """
    try:
        _, sha256 = _record(path)
        for part in (_WEIGHTS, _OPTIMIZER):
            _check(path / part, sha256)
    except DamagedError as error:
        return str(error)
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or the newest whole one of a run folder, without its optimiser's state.

    A run folder may be named by its folder of checkpoints, too.

    Raises:
        UsageError: if there is none.
        DamagedError: naming the file that is damaged.
        FormatError: if it is of another format.
    """
    if path.absolute().name == FOLDER and saved(path):
        path = path.absolute().parent
    if (path / FOLDER).is_dir():
        newest = latest(path)
        if newest is None:
            raise UsageError(f"{path}: no whole checkpoint is in {path / FOLDER}")
        path = newest
    elif not (path / _RECORD).exists():
        raise UsageError(f"{path}: neither a checkpoint nor a run folder that has one")
    record, sha256 = _record(path)
    _check(path / _WEIGHTS, sha256)
    return Checkpoint(path, record, _load(path / _WEIGHTS), sha256)


def read_whole(path: Path) -> Checkpoint:
    """Read a checkpoint to go on from: as `read` does, with the optimiser's file compared too.

    Raises:
        DamagedError: naming the file that is damaged.
        FormatError: if it is of another format.
    """
    record, sha256 = _record(path)
    for part in (_WEIGHTS, _OPTIMIZER):
        _check(path / part, sha256)
    checked = frozenset({_WEIGHTS, _OPTIMIZER})
    return Checkpoint(path, record, _load(path / _WEIGHTS), sha256, checked)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _free(path: Path) -> Path:
    """Return a path that is not taken: `path` itself, or with a number behind it."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _clean(folder: Path) -> None:
    for path in folder.glob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _record(path: Path) -> tuple[Record, dict[str, str]]:
    try:
        data = (path / _RECORD).read_bytes()
    except OSError as error:
        raise DamagedError(f"{path / _RECORD} cannot be read: {error.strerror}") from error
    try:
        # First: another format may have nothing else in common.
        written = msgspec.json.decode(data, type=_Format).format
        if written != _FORMAT:
            raise FormatError(
                f"{path} has format {written}, and this version reads {_FORMAT} only: "
                "another version of dflash_min wrote it"
            )
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"{path / _RECORD} is damaged: {error}") from error
    record = Record(**{field: getattr(file, field) for field in Record.__struct_fields__})
    if _digest(record) != file.sha256.get(_RECORD):
        raise DamagedError(f"{path / _RECORD} is damaged: its values are not those written")
    return record, file.sha256


def _digest(record: Record) -> str:
    return hashlib.sha256(msgspec.json.encode(record)).hexdigest()


def _check(path: Path, sha256: Mapping[str, str]) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    if found != sha256.get(path.name):
        raise DamagedError(f"{path} is damaged: its bytes are not those that were written")


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


class _Sink:
    """Takes what `torch.save` writes, for a file and a digest.

    It keeps the error of a write, which torch turns into a RuntimeError about positions.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _save(state: dict[str, Any], path: Path) -> str:
    """Write a state and return the file's sha256."""
    with path.open("xb") as file:
        sink = _Sink(file)
        try:
            torch.save(state, sink)  # type: ignore[arg-type]  # it needs no more of a file
        except RuntimeError:
            if sink.error is not None:
                raise sink.error from None
            raise
    return sink.sha256
