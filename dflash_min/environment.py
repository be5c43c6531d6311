"""What a command finds where it is started: which torch, how many GPUs, how many cores."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from typing import TYPE_CHECKING, Final

from dflash_min.errors import MemoryLimitError
from dflash_min.versions import check_torch_version

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_CPU_THREADS: Final = 8


def check_torch() -> None:
    """Refuse a torch that is missing or untried, without importing it.

    Raises:
        UsageError: naming the version found and those that are supported.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    check_torch_version(version, sys.executable)


def visible_gpus() -> int:
    """Return how many GPUs torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def cpu_threads() -> int:
    """Return how many threads of single-threaded operations keep this machine busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(cores, _MOST_CPU_THREADS)


@contextlib.contextmanager
def within_memory(smaller: str) -> Iterator[None]:
    """Say in one line that memory has run out, where the block fails for that.

    Args:
        smaller: the flags that would take less.

    Raises:
        MemoryLimitError: instead of torch's error. On a GPU that has a class of its own, and on a
            CPU none: it is a RuntimeError of the allocator (c10/core/impl/alloc_cpu.cpp).
    """
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not (
            isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
        ):
            raise
        raise MemoryLimitError(
            f"out of memory: {text.splitlines()[0] if text else 'Python has none left'}; "
            f"smaller {smaller} take less"
        ) from error
