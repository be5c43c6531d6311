"""Run folders: ``OUT/<UTC time>-<slug>/``, one for each run, readable by their owner only."""

import datetime as dt
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from dflash_min.errors import UsageError


def make_run_folder(out: Path, slug: str, now: dt.datetime | None = None) -> Path:
    """Make a new folder under ``out``, which is made too if need be.

    The name is unique however many runs start at the same moment. Mode 0700: a recording holds
    parts of the environment and of the program's texts.

    Args:
        out: where run folders are kept.
        slug: what ran; anything but letters, digits, ``_`` and ``.`` becomes a dash.
        now: the time in the name, UTC.

    Raises:
        UsageError: the folder cannot be made or written to.
    """
    now = now or dt.datetime.now(dt.UTC)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", slug).strip("-.")[:48] or "run"
    stem = f"{now:%Y%m%dT%H%M%SZ}-{slug}"
    number = 1
    try:
        out.mkdir(parents=True, exist_ok=True)
        while True:
            folder = out / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                number += 1
                continue
            return folder.resolve()
    except FileExistsError as error:
        raise UsageError(f"cannot write to the output folder {out}: it is a file") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write to the output folder {out}: {reason}") from error


def missing_parents(out: Path) -> list[Path]:
    """Return the folders that would have to be made for ``out`` to be one, innermost first."""
    return [folder for folder in (out, *out.parents) if not folder.exists()]


def remove_run_folder(folder: Path, made: Sequence[Path] = ()) -> None:
    """Remove a run folder that came to nothing, and the folders ``made`` for it, innermost first.

    A folder that holds something else by now stays.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for parent in made:
        try:
            parent.rmdir()
        except OSError:  # another run is in it
            return


TAIL_BYTES = 16 * 1024
"""What is kept of the end of a text that a program or its watch left."""


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the last ``size`` bytes of a text file as text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - size, 0))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
