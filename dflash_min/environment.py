"""What a command finds where it is started: which torch, how many GPUs, how many cores."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Final

from dflash_min.versions import check_torch_version

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
