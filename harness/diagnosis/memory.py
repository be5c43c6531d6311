"""The report's section on memory: peaks per device and phase, bounds, and requests that failed."""

from collections.abc import Iterable, Sequence

from harness.causes import out_of_memory, words
from harness.causes.base import Found
from harness.causes.out_of_memory import Failure
from harness.diagnosis.memory_report import DeviceMemory, FailedRequest, Memory, PhaseMemory
from harness.timeline.memory import Device, Peak
from harness.timeline.timeline import Timeline

MAX_PHASES = 64
MAX_REQUESTS = 64


def memory(timeline: Timeline, found: Sequence[Found]) -> list[Memory]:
    """What is known of one process's memory; empty where nothing is.

    Args:
        timeline: the process.
        found: its findings, for which of them account for failed requests.
    """
    use = timeline.memory
    failures = out_of_memory.failures(timeline)
    if not use.devices and not failures:
        return []
    codes = [(finding.code, finding.explains) for finding in found]
    requests = tuple(
        FailedRequest(
            thread=words.ref(timeline, failure.tid),
            device=failure.data.device,
            asked=failure.data.asked,
            free=failure.data.free,
            total=failure.data.total,
            allocated=failure.data.allocated,
            reserved=failure.data.reserved,
            cap=failure.data.cap,
            doing=failure.data.doing,
            sizes=failure.data.sizes,
            count=failure.data.count,
            t_s=round(timeline.seconds(failure.t), 6),
            survived=failure.survived(timeline),
            explained_by=tuple(code for code, seqs in codes if seqs & failure.seqs),
            evidence=words.seqs(failure.seqs),
        )
        for failure in _listed(timeline, failures)
    )
    return [
        Memory(
            pid=timeline.pid,
            devices=tuple(_devices(use.devices.values())),
            phases=tuple(_phases(use.phases.values())),
            requests=requests,
            left_out=len(failures) - len(requests) + use.left_out,
        )
    ]


def _listed(timeline: Timeline, failures: Sequence[Failure]) -> list[Failure]:
    """As many as there is room for, in order of time; those that ended something before others."""
    chosen = sorted(failures, key=lambda failure: failure.survived(timeline))[:MAX_REQUESTS]
    return sorted(chosen, key=lambda failure: failure.t)


def _devices(devices: Iterable[Device]) -> Iterable[DeviceMemory]:
    for device in sorted(devices, key=lambda device: device.name):
        yield DeviceMemory(
            device=device.name,
            peak_allocated=device.peak_allocated,
            peak_reserved=device.peak_reserved,
            total=device.total,
            cap=device.cap,
            capped_by=device.capped_by,
            evidence=device.seq,
        )


def _phases(peaks: Iterable[Peak]) -> Iterable[PhaseMemory]:
    for peak in sorted(peaks, key=lambda peak: peak.t)[:MAX_PHASES]:
        data = peak.data
        yield PhaseMemory(
            name=data.name,
            device=data.device,
            before=data.before,
            peak=data.peak,
            exact=data.exact,
            evidence=peak.seq,
        )
