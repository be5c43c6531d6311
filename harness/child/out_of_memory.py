"""What is to be said of a request for memory that failed: who asked for how much, and for what.

A GPU's allocator tells an observer. Of the processor's allocator there is only the exception, so
that a request which the program survives is seen only in dense attention.
"""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from . import graphs, memory, torch_code
from . import torch_symbols as symbols
from .errors import error_number, linked, type_name
from .oom_text import CPU, asked_of, device_of, is_out_of_memory
from .recorder import Recorder
from .stacks import frames_of, user_stack

POINT = "out_of_memory"
#: The attribute of an exception that was recorded.
_NOTED = "__compile_race_oom__"
_marks = itertools.count(1)


class Requests:
    """Records the requests that fail, each once.

    Attributes:
        cap: the bound on the processor's memory in bytes; None if there is none.
        observed: the GPUs' allocator tells ``observe``: exceptions about a GPU are then no news.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.cap: int | None = None
        self.observed = False
        self._recorder = recorder

    def observe(self, device: int, asked: int, total: int, free: int) -> None:
        """Record a request of a GPU's caching allocator that is about to fail.

        The allocator calls this in the thread that asked, with none of its locks held and after
        everything cached was given back (c10/cuda/CUDACachingAllocator.cpp). Nothing of a device
        is taken here and nothing raised: an exception would replace the program's own.

        Args:
            device: the GPU's index.
            asked: bytes, rounded up to what the allocator asks of CUDA: a multiple of 2 MiB.
            total: bytes that the process may have: the device's, or the part that it was given.
            free: bytes that the device has left, for everybody.
        """
        try:
            self._record_on_gpu(f"cuda:{device}", asked, total, free)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def failing(self, error: BaseException, caller: FrameType | None = None) -> None:
        """Record the failed request that an exception, or one that it came from, tells of.

        Does nothing for other exceptions, and for one seen before. Never raises.

        Args:
            error: the exception.
            caller: the frame that it has come up to, where it is still on its way.
        """
        try:
            for link, _ in linked(error):
                kind, message = type_name(type(link)), str(link)
                if is_out_of_memory(kind, message) and not _was_recorded(link):
                    self._record_error(link, caller if link is error else None)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def _record_on_gpu(self, device: str, asked: int, total: int, free: int) -> None:
        use = memory.use_of(device) or memory.Use(device)  # the first request may fail
        whole = memory.total_of(device) or total
        data: dict[str, Any] = {
            "device": device,
            "asked": asked,
            "free": free,
            "total": whole,
            "allocated": use.allocated,
            "reserved": use.reserved,
            "cap": total if total < whole else None,
            "seen": "allocator",
            **_doing(torch_code.outwards(sys._getframe(1))),  # noqa: SLF001 - no other way is cheap
        }
        self._recorder.emit_counted(POINT, (device, data["doing"]), data, where=user_stack())

    def _record_error(self, error: BaseException, caller: FrameType | None) -> None:
        message = str(error)
        device = device_of(type_name(type(error)), message)
        if device != CPU and self.observed:
            return
        use = memory.use_of(device)
        data: dict[str, Any] = {
            "device": device,
            "asked": asked_of(message),
            "total": use.total if use else None,
            "allocated": use.allocated if use else None,
            "reserved": use.reserved if use else None,
            "cap": self.cap if device == CPU else None,
            "seen": "error",
            "error": error_number(error),
            **_doing((*_inwards_out(error.__traceback__), *torch_code.outwards(caller))),
        }
        frames = frames_of(error.__traceback__)[::-1]
        if caller is not None:
            frames += user_stack()
        else:
            # A traceback begins where the error was caught, which says nothing of its thread.
            while frames and not frames[-1][3]:
                frames.pop()
        self._recorder.emit_counted(POINT, (device, data["doing"]), data, where=frames)


def _was_recorded(error: BaseException) -> bool:
    """Whether this exception was recorded before; the next time it will have been.

    Of threads that raise one exception at once, a future's say, one is told that it was not.
    """
    # In one step. A pickled one comes from another process, which has recorded it.
    mine = f"{os.getpid()} {next(_marks)}"
    return error.__dict__.setdefault(_NOTED, mine) is not mine


def _inwards_out(traceback: TracebackType | None) -> Iterator[FrameType]:
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return reversed(frames)


def _doing(frames: Iterable[FrameType]) -> dict[str, Any]:
    """What the nearest frame that is known was there for, and the sizes (B, H, Q, KV) of that."""
    inner = list(frames)
    for index, frame in enumerate(inner):
        what = torch_code.memory_of(frame.f_code)
        if what in {"dense_attention", "dense_backward"}:
            if graphs.in_compiled_graph(inner[index:]):
                what = "reference_attention"
            return {"doing": what, **_scores(frame)}
        if what == "block_mask":
            return {"doing": what, "sizes": _mask(inner[index:])}
    return {"doing": "", "sizes": []}


def _scores(frame: FrameType) -> dict[str, Any]:
    names = frame.f_locals
    query, key = names.get("query"), names.get("key")
    if query is None or key is None:
        return {"sizes": []}
    with symbols.DISABLE_TORCH_FUNCTION.get()():
        sizes = [*query.shape[:3], key.shape[-2]]
        return {"sizes": sizes, "dtype": str(query.dtype), "element_size": query.element_size()}


def _mask(frames: Iterable[FrameType]) -> list[int]:
    for frame in frames:
        if torch_code.memory_of(frame.f_code) == "block_mask":
            names = frame.f_locals
            sizes = [names.get(name) for name in symbols.MASK_SIZES]
            if any(size is not None for size in sizes):
                return [1 if size is None else int(size) for size in sizes]
    return []
