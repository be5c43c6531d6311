"""The GPUs' names, once the program itself has initialised CUDA."""

import sys
from typing import Any

from .recorder import Recorder

_recorded_in: set[int] = set()


def record_once(recorder: Recorder) -> None:
    """Write one ``gpu`` event a process, as soon as CUDA is initialised; never initialises it."""
    torch: Any = sys.modules.get("torch")
    if recorder.pid in _recorded_in or torch is None or not torch.cuda.is_initialized():
        return
    _recorded_in.add(recorder.pid)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    recorder.emit("gpu", {"names": names})
