"""Records how much memory is in use: now and then, and the most of a phase, a call and the run."""

import time
from typing import Any

from . import memory
from .recorder import Recorder

#: Events at which memory is looked at: they are rare, and the program is doing something else.
POINTS = frozenset({"phase", "step", "dynamo_compile"})
INTERVAL_S = 0.5


class Sampler:
    """Looks at memory when something else was recorded, at most twice a second.

    Torch's peaks are of the whole run, and are not reset here: the program may read them. So the
    peak of a phase is exact only if the run's peak rose in it; otherwise the most that a sample
    saw is what is known.
    """

    def __init__(self, recorder: Recorder, interval_s: float = INTERVAL_S) -> None:
        self._recorder = recorder
        self._interval_s = interval_s
        self._next = 0.0
        self._phases: list[_Phase] = []

    def noted(self, point: str, edge: str) -> None:
        """An event was written. Never raises."""
        if point not in POINTS:
            return
        try:
            if point == "phase":
                self._phase(edge)
            elif time.monotonic() >= self._next:
                self.sample()
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def sample(self) -> list[memory.Use]:
        """Record what is in use, and return it."""
        # Of two threads at once both may sample: one more event does no harm.
        self._next = time.monotonic() + self._interval_s
        found = memory.uses()
        for use in found:
            self._recorder.emit("memory", use.data())
        for phase in list(self._phases):
            phase.see(found)
        return found

    def record_peaks(self) -> None:
        """Record the most that was in use in the whole run."""
        for use in self.sample():
            data = {
                "device": use.device,
                "scope": "program",
                "peak": use.peak_allocated,
                "peak_reserved": use.peak_reserved,
                "total": use.total,
            }
            self._recorder.emit("memory_peak", data)

    def _phase(self, edge: str) -> None:
        name, tid = self._recorder.local.phase or "", self._recorder.local.tid
        if edge == "enter":
            phase = _Phase(tid, name)
            self._phases.append(phase)
            self.sample()
            return
        self.sample()
        ended = next((p for p in reversed(self._phases) if (p.tid, p.name) == (tid, name)), None)
        if ended is None:
            return
        self._phases.remove(ended)
        for data in ended.peaks():
            self._recorder.emit_counted("memory_peak", (name, data["device"]), data)


class _Phase:
    """A phase under way in one thread, with the samples that fell into it."""

    def __init__(self, tid: int, name: str) -> None:
        self.tid = tid
        self.name = name
        self._spans: dict[str, Span] = {}

    def see(self, uses: list[memory.Use]) -> None:
        for use in uses:
            span = self._spans.get(use.device)
            if span is None:
                span = self._spans[use.device] = Span(use)
            span.see(use)

    def peaks(self) -> list[dict[str, Any]]:
        """Return ``harness.events.memory.MemoryPeakData`` for each device."""
        said = {"scope": "phase", "name": self.name}
        return [{**said, **span.data()} for span in self._spans.values()]


class Span:
    """What one device held at most from a first look to the last one."""

    def __init__(self, first: memory.Use) -> None:
        self._first = self._last = first
        self._most = first.allocated

    def see(self, use: memory.Use) -> None:
        """Take in a later look."""
        self._last = use
        self._most = max(self._most, use.allocated)

    def data(self) -> dict[str, Any]:
        """Return what ``MemoryPeakData`` says of a device."""
        first, last = self._first, self._last
        # It rose: then the most ever held was held in between. If it fell, or a look saw more than
        # it says, the program reset it, and what was held before that is known from looks alone.
        rose = last.peak_allocated > first.peak_allocated
        reset = last.peak_allocated < max(first.peak_allocated, self._most)
        peak = max(last.peak_allocated, self._most) if rose or reset else self._most
        return {
            "device": last.device,
            "before": first.allocated,
            "peak": peak,
            "peak_reserved": last.peak_reserved,
            "total": last.total,
            "exact": rose and not reset,
        }


class Meter:
    """Measures one dense call: made before it, asked to record after it."""

    def __init__(self, recorder: Recorder, device: str) -> None:
        self._recorder = recorder
        self._device = device
        self._span: Span | None = None
        try:
            use = memory.use_of(device)
            # A GPU never used before has no statistics yet.
            self._span = Span(use or memory.Use(device))
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            recorder.lost += 1

    def record(self) -> None:
        """Record the most that was held since. Never raises."""
        try:
            use = memory.use_of(self._device)
            if self._span is not None and use is not None:
                self._span.see(use)
                data = {"scope": "dense_attention", **self._span.data()}
                self._recorder.emit("memory_peak", data)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1
