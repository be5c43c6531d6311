"""What the type and the text of an exception tell of a request for memory that failed."""

import re

CPU = "cpu"
GPU = "cuda"
_TYPES = ("MemoryError", "OutOfMemoryError")
# The second and third are torch's own allocator for the processor (c10/core/impl/alloc_cpu.cpp),
# the fourth any C++ code's, the others CUDA's and its libraries'.
_TEXTS = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ON_GPU = ("CUDA", "HIP", "CUBLAS")
_DEVICE = re.compile(r"\bGPU (\d+)\b")
_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_UNITS = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_SIZE = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether an exception of class ``kind``, with its module, says that memory ran out."""
    if kind.endswith(_TYPES):
        return True
    return kind.endswith("Error") and any(text in message for text in _TEXTS)


def device_of(kind: str, message: str) -> str:
    """Whose memory: ``cpu``, ``cuda:0``, or ``cuda`` where the text does not say which."""
    if not kind.endswith("OutOfMemoryError") and not any(word in message for word in _ON_GPU):
        return CPU
    number = _DEVICE.search(message)
    return f"{GPU}:{number[1]}" if number else GPU


def asked_of(message: str) -> int | None:
    """Bytes that were asked for; rounded where the text is, None where it does not say."""
    exact = _BYTES.search(message)
    if exact:
        return int(exact[1])
    rounded = _UNITS.search(message)
    return round(float(rounded[1]) * _SIZE[rounded[2]]) if rounded else None
