"""How much memory this process holds and has held at most, per device, read without a CUDA call.

What is read of a GPU is the caching allocator's own bookkeeping, which needs no CUDA context and
initialises nothing. Of the processor's memory it is what Linux says of the resident set.
"""

import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

CPU = "cpu"
_STATUS = "/proc/self/status"
_RESIDENT, _MOST_RESIDENT = b"\nVmRSS:", b"\nVmHWM:"


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes in use on one device. On ``cpu`` they are resident and nothing is ``reserved``.

    Attributes:
        allocated, reserved: in use by tensors, and held by the allocator for them, now.
        peak_allocated, peak_reserved: the most so far, or since the program reset torch's peaks.
        total: the device's own memory; 0 if it is not known.
    """

    device: str
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    total: int = 0

    def data(self) -> dict[str, Any]:
        """Return ``harness.events.memory.MemoryData``."""
        return asdict(self)


_totals: dict[str, int] = {}


def remember_totals(cuda: Any) -> None:
    """Note how large each GPU's memory is, in the thread that initialises CUDA."""
    for index in range(cuda.device_count()):
        _totals[f"cuda:{index}"] = int(cuda.get_device_properties(index).total_memory)


def total_of(device: str) -> int:
    """How large a GPU's memory is; 0 if it is not known."""
    return _totals.get(device, 0)


def uses() -> list[Use]:
    """Return what is in use on the processor and on each GPU that was ever used."""
    return [of_cpu(), *_of_gpus()]


def use_of(device: str) -> Use | None:
    """What is in use on one device, named as torch prints it; None if that cannot be read."""
    if device == CPU:
        return of_cpu()
    found = [use for use in _of_gpus() if use.device == device]
    return found[0] if found else None


def of_cpu() -> Use:
    """The process's resident set; zeros where the system does not tell."""
    try:
        # Looked at while the program trains: text of sixty lines would take twice as long.
        with open(_STATUS, "rb", buffering=0) as file:  # noqa: PTH123
            status = file.read(1 << 14) or b""
        resident, most = _kibibytes(status, _RESIDENT), _kibibytes(status, _MOST_RESIDENT)
    except (OSError, ValueError):  # not Linux
        return Use(CPU)
    return Use(CPU, total=_physical(), allocated=resident << 10, peak_allocated=most << 10)


def _kibibytes(status: bytes, name: bytes) -> int:
    _, _, after = status.partition(name)
    return int(after.partition(b"kB")[0])


def _of_gpus() -> list[Use]:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # is_initialized() is false in a forked child, where the parent's state must not be touched.
    if cuda is None or not cuda.is_initialized():
        return []
    found = (_of_gpu(cuda, index) for index in range(cuda.device_count()))
    return [use for use in found if use is not None]


def _of_gpu(cuda: Any, index: int) -> Use | None:
    stats = cuda.memory_stats_as_nested_dict(index)
    allocated, reserved = _all(stats, "allocated_bytes"), _all(stats, "reserved_bytes")
    if not reserved["peak"] and not allocated["peak"]:
        return None
    device = f"cuda:{index}"
    return Use(
        device=device,
        allocated=allocated["current"],
        reserved=reserved["current"],
        peak_allocated=allocated["peak"],
        peak_reserved=reserved["peak"],
        total=_totals.get(device, 0),
    )


def _all(stats: dict[str, Any], name: str) -> dict[str, int]:
    # An allocator other than torch's own keeps no statistics.
    return {"current": 0, "peak": 0, **stats.get(name, {}).get("all", {})}


def _physical() -> int:
    total = _totals.get(CPU)
    if total is None:
        try:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            total = 0
        _totals[CPU] = total
    return total
