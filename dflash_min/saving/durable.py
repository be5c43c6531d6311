"""What is on disk whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from typing import TYPE_CHECKING, BinaryIO, Final

from dflash_min.errors import SaveError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes `path` when the block ends without an error.

    It lies beside `path` until then, is flushed to disk and renamed. After an error nothing is left
    of it; a process killed meanwhile leaves it under its hidden name.

    Raises:
        OSError: if something cannot be written, or `path` is there by then and is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    aside.mkdir()
    try:
        yield aside
        readers = aside.stat().st_mode & 0o666
        for written in aside.rglob("*"):
            if written.is_file():
                written.chmod(readers)  # safetensors makes files that only their owner reads
            _flush(written)
        _flush(aside)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _flush(path.parent)


def check_out(out: Path, size: int) -> None:
    """Refuse an `--out` that could not be written when the work is done. Leaves nothing there.

    Args:
        out: the file or folder.
        size: bytes that it will take at least.

    Raises:
        UsageError: if nothing can be made there.
        SaveError: if there is no room for so much.
    """
    above = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
    trial = out.parent / f".{out.name}.{secrets.token_hex(4)}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with trial.open("xb") as file:
            _take(file, size, out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
        with contextlib.suppress(OSError):
            for folder in above:
                folder.rmdir()


def _take(file: BinaryIO, size: int, out: Path) -> None:
    if not size:
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return  # a file system that cannot tell
        raise SaveError(
            f"--out {out} takes {size / 1e6:.1f} MB: {error.strerror}; nothing was begun"
        ) from error


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which becomes `path` when the block ends without an error.

    As `new_folder` does it for folders; a file that is at `path` by then is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _flush(path.parent)
