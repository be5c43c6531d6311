"""Whether there are GPUs, and their names once the program itself has initialised CUDA."""

import glob
import os
import sys
from typing import Any

from .recorder import Recorder

_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: Values that hide every GPU: torch takes a list up to the first index that is none.
_NONE_VISIBLE = frozenset({"", "-1", "NoDevFiles"})
_recorded_in: set[int] = set()


def record_once(recorder: Recorder) -> None:
    """Write one ``gpu`` event a process, as soon as CUDA is initialised; never initialises it."""
    torch: Any = sys.modules.get("torch")
    if recorder.pid in _recorded_in or torch is None or not torch.cuda.is_initialized():
        return
    _recorded_in.add(recorder.pid)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    recorder.emit("gpu", {"names": names})


def gpu_is_visible(build: str) -> bool:
    """Whether a torch built for ``build`` (CUDA's or ROCm's version; empty: neither) sees a GPU.

    To judge by the devices and the environment: asking CUDA would initialise the driver.
    """
    if not build or any(os.environ.get(name, "0").strip() in _NONE_VISIBLE for name in _VISIBLE):
        return False
    return any(glob.glob(pattern) for pattern in _DEVICES)  # noqa: PTH207 - few imports here
