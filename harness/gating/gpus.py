"""Who gets which GPU: pins for pytest's workers, and leases that no two processes hold at once.

A GPU is named as in the caller's CUDA_VISIBLE_DEVICES, of which a pin is an index. Nothing here
imports torch, which reads that variable when it first looks for GPUs.
"""

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
LEASED = "COMPILE_RACE_LEASED_GPUS"
"""Set where whoever started the process holds the GPUs that it sees for it."""

_POLL_S = 0.05


class HeldError(Exception):
    """Somebody else holds the GPUs, and went on to do so."""


def callers_gpus(environment: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The GPUs that the caller sees, as CUDA_VISIBLE_DEVICES would name each of them.

    Args:
        environment: the caller's.
        count: how many torch sees with it.
    """
    listed = environment.get(VISIBLE)
    if listed is None:
        return tuple(str(index) for index in range(count))
    return tuple(part.strip() for part in listed.split(",") if part.strip())[:count]


def worker_number(name: str) -> int:
    """The number in the name of one of pytest-xdist's workers: 3 for ``gw3``."""
    digits = re.sub(r"\D", "", name)
    return int(digits) if digits else 0


def pinned(gpus: Sequence[str], worker: int) -> tuple[str, ...]:
    """The GPU that a worker takes first; workers share where they outnumber the GPUs, in turn."""
    return (gpus[worker % len(gpus)],) if gpus else ()


def lock_folder() -> Path:
    """Where the leases of this user's processes on this machine are."""
    return Path(tempfile.gettempdir()) / f"compile-race-gpus-{os.getuid()}"


@contextlib.contextmanager
def lease(
    gpus: Sequence[str],
    number: int,
    first: Sequence[str] = (),
    folder: Path | None = None,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, ...]]:
    """Hold so many GPUs, waiting until nobody else holds them; all or none at a time.

    A lease ends with the process that holds it, however that ends.

    Args:
        gpus: those to choose from.
        number: how many; at most as many as there are.
        first: those to be tried first.
        folder: of the lock files.
        give_up: asked before each look.

    Yields:
        What CUDA_VISIBLE_DEVICES is to hold, in the order of ``gpus``.

    Raises:
        HeldError: told to give up.
    """
    assert number <= len(gpus)
    folder = folder or lock_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    wanted = [*(gpu for gpu in gpus if gpu in first), *(gpu for gpu in gpus if gpu not in first)]
    with contextlib.ExitStack() as held:
        while True:
            if give_up():
                raise HeldError
            with contextlib.ExitStack() as attempt:
                mine = _take(wanted, number, folder, attempt)
                if len(mine) == number:
                    held.push(attempt.pop_all())
                    break
            time.sleep(_POLL_S)
        yield tuple(gpu for gpu in gpus if gpu in mine)


def _take(gpus: Sequence[str], number: int, folder: Path, held: contextlib.ExitStack) -> set[str]:
    mine: set[str] = set()
    for gpu in gpus:
        if len(mine) == number:
            break
        path = folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        held.callback(os.close, descriptor)
        mine.add(gpu)
    return mine


@contextlib.contextmanager
def visible(gpus: Sequence[str], environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let what is started meanwhile see these GPUs only, or none."""
    before = environment.get(VISIBLE)
    environment[VISIBLE] = ",".join(gpus)
    try:
        yield
    finally:
        if before is None:
            del environment[VISIBLE]
        else:
            environment[VISIBLE] = before
