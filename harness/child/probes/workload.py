"""Phases and steps that the built-in trainer announces to whoever sets an observer."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..recorder import Recorder
from ..settings import Settings
from . import Unavailable

_MODULE = "dflash_min.observe"


class Workload:
    """Sets the trainer's observer."""

    name = "workload"
    modules: tuple[str, ...] = (_MODULE,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Become the observer."""
        del settings
        set_observer = sys.modules[_MODULE].__dict__.get("set_observer")
        if not callable(set_observer):
            raise Unavailable(f"{_MODULE} has no set_observer")
        set_observer(RecordingObserver(recorder))


class RecordingObserver:
    """Records phases, per thread, and steps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the phase's enter and exit; events of this thread in between carry its name."""
        local = self._recorder.local
        outer, local.phase = local.phase, name
        begun = self._recorder.emit("phase", {"name": name}, edge="enter")
        self._recorder.reach("phase", "enter")
        try:
            yield
        finally:
            self._recorder.reach("phase", "exit")
            if begun:
                self._recorder.emit("phase", {"name": name}, edge="exit")
            local.phase = outer

    def step(self, step: int, tokens: int, seconds: float) -> None:
        """Record a finished step of the calling thread."""
        data = f'{{"step": {step}, "tokens": {tokens}, "seconds": {seconds:.6f}}}'
        self._recorder.emit_steady("step", data)
        self._recorder.reach("step", "enter")
        self._recorder.reach("step", "exit")

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Record nothing: these waits are the trainer's own, and there is no end of them."""
        del what
        return nullcontext()


PROBE: Any = Workload()
