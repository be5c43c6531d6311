"""The section on memory, as rows and sentences for every form of the report."""

from collections.abc import Iterator

from harness.diagnosis.memory_report import DeviceMemory, Memory
from harness.events.memory import size
from harness.phrases import count
from harness.render.view import View

TITLE = "Memory"
HEADS = ("Device", "What", "Peak", "Reserved", "Of", "Bound")


def rows(of: Memory) -> Iterator[tuple[str, ...]]:
    """The cells of the table under ``HEADS``: the whole run per device, then its phases."""
    for device in of.devices:
        yield (
            device.device,
            "the run",
            size(device.peak_allocated),
            size(device.peak_reserved) if device.peak_reserved else "",
            size(device.total) if device.total else "",
            size(device.cap) if device.cap else "",
        )
        for phase in of.phases:
            if phase.device == device.device:
                least = "" if phase.exact else "at least "
                peak = f"{least}{size(phase.peak)}"
                yield device.device, f"phase {phase.name}", peak, "", "", ""


def sentences(view: View, of: Memory) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A sentence for each request that failed, and its evidence."""
    for failed in of.requests:
        asked = "memory" if failed.asked is None else size(failed.asked)
        what = {
            "dense_attention": " for dense attention",
            "dense_backward": " for the backward of dense attention",
            "reference_attention": " for attention under a backend that runs it dense",
            "block_mask": " for a block mask",
        }.get(failed.doing, "")
        codes = f", explained by {' and '.join(failed.explained_by)}" if failed.explained_by else ""
        said = (
            f"`{view.name(failed.thread)}` asked for {asked} on `{failed.device}`{what} at "
            f"{failed.t_s:.3f} s, and did not get it{codes}."
        )
        yield said, failed.evidence
    if of.left_out:
        yield f"{of.left_out:,} more failed requests are not listed.", ()


def lines(view: View) -> list[str]:
    """The section for a terminal: a line a device, and one for failed requests.

    Empty where no request failed and no bound was set: peaks alone are in the full report.
    """
    found: list[str] = []
    for of in view.report.memory:
        if of.requests or any(device.cap for device in of.devices):
            found += [_line(device) for device in of.devices]
            if of.requests:
                found.append(f"{count(_failed(of), 'request')} for memory failed")
    return found


def _failed(of: Memory) -> int:
    """How many requests failed; a loop's are not all recorded, each has their number so far."""
    most: dict[tuple[int, int, str, str], int] = {}
    for request in of.requests:
        key = (request.thread.tid, request.thread.life, request.device, request.doing)
        most[key] = max(most.get(key, 0), request.count)
    return sum(most.values())


def _line(device: DeviceMemory) -> str:
    kind = "resident" if device.device == "cpu" else "allocated"
    said = f"`{device.device}`: at most {size(device.peak_allocated)} {kind}"
    if device.peak_reserved:
        said += f", {size(device.peak_reserved)} reserved"
    if device.total:
        said += f", of {size(device.total)}"
    return f"{said}, bounded to {size(device.cap)}" if device.cap else said
