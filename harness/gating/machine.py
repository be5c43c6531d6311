"""The machine that the gate runs on: torch, its GPUs, and faults that are none of the program's."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.diagnosis.report import Report
from harness.gating.gpus import VISIBLE, callers_gpus
from harness.supervise.ending import disk_full
from harness.supervise.interpreter import check_torch, inspect

_LOOK = """
import json, torch
seen = []
for index in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(index)
    seen.append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
print(json.dumps(seen))
"""
_LOOK_S = 120.0
_OWN_GIB = 1.0
"""What the process that looks needs itself, its CUDA context, at most."""
GIB = 1 << 30
CPU = "cpu"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU: its token in CUDA_VISIBLE_DEVICES, its name, and bytes of its memory."""

    token: str
    name: str
    free: int
    total: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """``torch``: the whole version; ``gpus``: those that the caller sees."""

    torch: str
    python: str
    gpus: tuple[Gpu, ...] = ()

    @property
    def minor(self) -> str:
        """``2.13`` of ``2.13.0+cpu``."""
        match = re.match(r"\d+\.\d+", self.torch)
        return match[0] if match else self.torch

    @property
    def device(self) -> str:
        """The kind of GPU, such as ``NVIDIA H200``; ``cpu`` where there is none."""
        return self.gpus[0].name if self.gpus else CPU

    def device_for(self, gpus: int) -> str:
        """The kind of device that an entry with so many GPUs runs on."""
        return self.device if gpus else CPU


def look() -> Machine:
    """Find out what there is. Raises UsageError: there is no torch, or none that is supported."""
    python = inspect(sys.executable)
    check_torch(python, needed=True)
    # A build without CUDA and hidden GPUs need no process that imports torch.
    hidden = os.environ.get(VISIBLE) == ""
    gpus = look_at_gpus(None) if python.cuda and not hidden else ()
    return Machine(torch=python.torch, python=python.python, gpus=gpus)


def look_at_gpus(tokens: Sequence[str] | None) -> tuple[Gpu, ...]:
    """The GPUs that torch sees, in a process of its own; ``tokens``: only those.

    None where it cannot say, a driver that fails included.
    """
    environment = dict(os.environ)
    if tokens is not None:
        environment[VISIBLE] = ",".join(tokens)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK],
            env=environment,
            capture_output=True,
            timeout=_LOOK_S,
            check=False,
        )
        seen = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ()
    names = callers_gpus(environment, len(seen))
    return tuple(
        Gpu(token=token, name=gpu["name"], free=gpu["free"], total=gpu["total"])
        for token, gpu in zip(names, seen, strict=False)
    )


def busy(gpus: Sequence[Gpu], limit_gib: float) -> str:
    """The fault that somebody else's memory is on a GPU; empty if it is not.

    Args:
        gpus: as they are while nothing of the gate's runs on them.
        limit_gib: so much in use is nobody's.
    """
    for gpu in gpus:
        used = (gpu.total - gpu.free) / GIB
        if used > limit_gib + _OWN_GIB:
            return (
                f"neighbour's memory on the GPU: {used:.1f} of {gpu.total / GIB:.1f} GiB of GPU "
                f"{gpu.token} ({gpu.name}) are in use by somebody else"
            )
    return ""


def neighbour(report: Report, limit_gib: float) -> str:
    """The same, from a request for memory that failed: what neither is free nor the program's."""
    for process in report.memory:
        for request in process.requests:
            free, total, reserved = request.free, request.total, request.reserved
            if free is None or total is None or reserved is None or request.cap is not None:
                continue
            others = (total - free - reserved) / GIB
            if others > limit_gib + _OWN_GIB:
                return (
                    f"neighbour's memory on the GPU: {others:.1f} of {total / GIB:.1f} GiB of "
                    f"{request.device} were somebody else's when a request for memory failed"
                )
    return ""


def full(folder: Path) -> str:
    """The fault that the disk is full; empty if it is not."""
    return f"disk full: nothing can be written to {folder}" if disk_full(folder) else ""
