"""Memory: how much is in use, which request for it failed, and a bound on it if one is wanted."""

import sys
from collections.abc import Callable
from typing import Any

from .. import gpus, memory, memory_cap
from .. import torch_symbols as symbols
from ..memory_use import Sampler
from ..out_of_memory import Requests
from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable


class MemoryProbe:
    """Samples at other probes' events and listens to the GPUs' allocator."""

    name = "memory"
    modules: tuple[str, ...] = (symbols.INIT_CUDA_CALL.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Start, and have the rest done when the program initialises CUDA, which it may never.

        Raises:
            Unavailable: this torch has no call for that, or no observer although it was built for
                GPUs; or the bound that was asked for cannot be set.
        """
        torch: Any = sys.modules["torch"]
        build = str(torch.version.cuda or torch.version.hip or "")
        when_initialised = symbols.INIT_CUDA_CALL.get()
        if build:
            symbols.OOM_OBSERVER.get()
        requests, sampler = Requests(recorder), Sampler(recorder)
        cap = settings.memory_cap
        if cap is not None and not gpus.gpu_is_visible(build):
            requests.cap = _limit_data(recorder, cap)
            cap = None
        if settings.in_process:
            _observe_once(when_initialised, recorder, requests)
        else:
            when_initialised(lambda: _on_gpus(recorder, requests, cap))
        recorder.noted = sampler.noted  # type: ignore[method-assign]
        recorder.failing = requests.failing  # type: ignore[method-assign]
        recorder.at_end.append(sampler.record_peaks)


class _Latest:
    """Tells whoever watches now, in a process that is watched again and again.

    Torch keeps an observer for good, so there is one.
    """

    requests: Requests | None = None
    attached = False

    @classmethod
    def observe(cls, device: int, asked: int, total: int, free: int) -> None:
        if cls.requests is not None:
            cls.requests.observe(device, asked, total, free)


def _observe_once(
    when_initialised: Callable[[Callable[[], None]], None], recorder: Recorder, requests: Requests
) -> None:
    first = _Latest.requests is None
    _Latest.requests = requests
    requests.observed = _Latest.attached

    def attach() -> None:
        now = _Latest.requests
        if now is not None:
            _on_gpus(recorder, now, None, _Latest.observe)
            _Latest.attached = now.observed

    if first:
        when_initialised(attach)


def _limit_data(recorder: Recorder, cap: int) -> int:
    try:
        bound = memory_cap.limit_data(cap)
    except (OSError, ValueError, ImportError) as error:
        raise Unavailable(f"the system sets no bound of {cap} bytes: {error}") from error
    recorder.emit("memory_cap", {"device": memory.CPU, "bytes": bound, "by": "RLIMIT_DATA"})
    return bound


def _on_gpus(
    recorder: Recorder,
    requests: Requests,
    cap: int | None,
    observe: Callable[[int, int, int, int], None] | None = None,
) -> None:
    """Run in the thread that initialises CUDA, before anything was allocated; never raises."""
    cuda: Any = sys.modules["torch"].cuda
    try:
        memory.remember_totals(cuda)
        symbols.OOM_OBSERVER.get()(observe or requests.observe)
        requests.observed = True
        bounds = {} if cap is None else memory_cap.limit_gpus(cuda, cap)
    except Exception as error:  # noqa: BLE001 - raised here, CUDA would be as good as broken
        reason = f"when CUDA was initialised: {type(error).__name__}: {error}"
        recorder.emit("probe", {"name": PROBE.name, "state": "failed", "reason": reason[:500]})
        return
    for device, bound in bounds.items():
        data = {"device": device, "bytes": bound, "by": "set_per_process_memory_fraction"}
        recorder.emit("memory_cap", data)


PROBE = MemoryProbe()
