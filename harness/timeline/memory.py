"""Memory over a run: peaks per device and phase, bounds, and requests that failed."""

from dataclasses import dataclass, field

from harness.events import schema
from harness.events.memory import MemoryPeakData, OutOfMemoryData
from harness.events.values import Frame

MAX_REQUESTS = 1024
MAX_PEAKS = 256
MAX_DEVICES = 64


@dataclass(slots=True, kw_only=True)
class Request:
    """A request for memory that failed."""

    tid: int
    t: int
    seq: int
    data: OutOfMemoryData
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class Peak:
    """The most that was in use in a phase or in a dense call, which ended at ``t``."""

    tid: int
    t: int
    seq: int
    data: MemoryPeakData


@dataclass(slots=True)
class Device:
    """One device's peaks over the run; ``seq`` is the event that says so."""

    name: str
    peak_allocated: int = 0
    peak_reserved: int = 0
    total: int = 0
    cap: int | None = None
    capped_by: str = ""
    seq: int = 0

    def see(self, allocated: int, reserved: int, total: int, seq: int) -> None:
        """Take in a reading of the peaks."""
        if allocated > self.peak_allocated or not self.seq:
            self.seq = seq
        self.peak_allocated = max(self.peak_allocated, allocated)
        self.peak_reserved = max(self.peak_reserved, reserved)
        self.total = max(self.total, total)


@dataclass(slots=True)
class MemoryUse:
    """One process's memory.

    Attributes:
        devices: by name, as torch prints it; ``cpu`` is the processor's.
        phases: the peaks of phases that ended, the highest of each name and device.
        dense: peaks of dense calls outside compiled code.
        requests: requests that failed, in order; at most ``MAX_REQUESTS``: the first and the last,
            of which one may have been fatal, and the largest.
        left_out: requests beyond that.
    """

    devices: dict[str, Device] = field(default_factory=dict)
    phases: dict[tuple[str, str], Peak] = field(default_factory=dict)
    dense: list[Peak] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    left_out: int = 0
    _largest: Request | None = None

    def sample(self, event: schema.Memory) -> None:
        """What was in use at some time."""
        data = event.data
        device = self._device(data.device)
        if device is not None:
            allocated = max(data.peak_allocated, data.allocated)
            reserved = max(data.peak_reserved, data.reserved)
            device.see(allocated, reserved, data.total, event.seq)

    def peak(self, event: schema.MemoryPeak) -> None:
        """The most that was in use in something."""
        data = event.data
        device = self._device(data.device)
        if device is not None:
            device.see(data.peak, data.peak_reserved, data.total, event.seq)
        found = Peak(tid=event.tid, t=event.t_ns, seq=event.seq, data=data)
        if data.scope == "phase":
            key = (data.device, data.name)
            known = self.phases.get(key)
            if (known is None and len(self.phases) < MAX_PEAKS) or (
                known is not None and data.peak > known.data.peak
            ):
                self.phases[key] = found
        elif data.scope == "dense_attention":
            self.dense.append(found)
            if len(self.dense) > MAX_PEAKS:
                self.dense.remove(min(self.dense, key=lambda peak: peak.data.peak))

    def cap(self, event: schema.MemoryCap) -> None:
        """A bound was set."""
        device = self._device(event.data.device)
        if device is not None:
            device.cap, device.capped_by = event.data.bytes, event.data.by
            device.seq = device.seq or event.seq

    def request(self, event: schema.OutOfMemory) -> None:
        """A request failed."""
        new = Request(
            tid=event.tid, t=event.t_ns, seq=event.seq, data=event.data, where=event.where
        )
        self.requests.append(new)
        if self._largest is None or _asked(new) > _asked(self._largest):
            self._largest = new
        if len(self.requests) > MAX_REQUESTS:
            middle = MAX_REQUESTS // 2
            del self.requests[middle + (self.requests[middle] is self._largest)]
            self.left_out += 1

    def _device(self, name: str) -> Device | None:
        device = self.devices.get(name)
        if device is None and len(self.devices) < MAX_DEVICES:
            device = self.devices[name] = Device(name)
        return device


def _asked(request: Request) -> int:
    return request.data.asked or 0
