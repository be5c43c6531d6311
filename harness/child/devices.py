"""The current device of a thread and those of its tensors, where an error may come of them."""

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

#: What triton's launcher and the CUDA driver say to a thread whose current device is not that of
#: the tensors (triton 3.6; the first has said it with and without the argument's place).
TEXTS = ("cannot be accessed from Triton", "invalid device context")
_MAX_FRAMES = 64
_MAX_TENSORS = 256


def of_error(error: BaseException) -> dict[str, Any]:
    """``current_device`` and ``devices`` of ``ThreadErrorData``; empty where nothing asks for them.

    To be called in the thread that raised it. Reads where tensors are and nothing of what they
    hold; initialises nothing; never raises.
    """
    try:
        if not any(text in str(link) for link in _chain(error) for text in TEXTS):
            return {}
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return {}
        found: dict[str, None] = {}
        for link in _chain(error):
            for tensor in _tensors(link.__traceback__, torch.Tensor):
                found.setdefault(str(tensor.device))
        return {"current_device": torch.cuda.current_device(), "devices": list(found)}
    except Exception:  # noqa: BLE001 - what an error was like is told without this too
        return {}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _tensors(traceback: TracebackType | None, kind: type) -> Iterator[Any]:
    """Tensors among the locals of a traceback's innermost frames and in their tuples and lists."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    left = _MAX_TENSORS
    for frame in frames[-_MAX_FRAMES:]:
        for value in list(frame.f_locals.values()):
            for item in value[:_MAX_TENSORS] if type(value) in (tuple, list) else (value,):
                if isinstance(item, kind):
                    yield item
                    left -= 1
                    if not left:
                        return
