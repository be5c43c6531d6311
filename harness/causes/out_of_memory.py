"""Requests for memory that failed, each with the errors that came of it and what it was for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.causes import words
from harness.causes.dense_memory import matches, need_of
from harness.causes.errors import handled, torchs_own
from harness.child.oom_text import CPU, asked_of, device_of, is_out_of_memory
from harness.events.memory import Doing, OutOfMemoryData, size
from harness.events.values import ErrorLink, Frame
from harness.statements import Stack, Statement
from harness.timeline.memory import Request
from harness.timeline.model import DenseCall, ErrorSeen
from harness.timeline.timeline import Timeline

_DENSE_FRAMES = frozenset({"math_attention", "sdpa_dense_backward"})
_MASK_FRAMES = frozenset({"create_mask", "create_block_mask"})
_FLEX_FILE = "flex_attention.py"
# The caching allocator asks CUDA for multiples of 2 MiB (c10/cuda/CUDACachingAllocator.h).
_CUDA_SLACK = 2 << 20
_WORTH_MATCHING = 16 << 20
"""Smaller requests are too many for their size to say whose they are."""


@dataclass(kw_only=True)
class Failure:
    """One failed request. ``request`` is None where only an error's text tells of it."""

    tid: int
    t: int
    data: OutOfMemoryData
    request: Request | None = None
    errors: list[ErrorSeen] = field(default_factory=list)
    where: tuple[Frame, ...] = ()

    @property
    def seqs(self) -> frozenset[int]:
        """The events that tell of it."""
        own = (self.request.seq,) if self.request else ()
        return frozenset((*own, *(error.seq for error in self.errors)))

    def survived(self, timeline: Timeline) -> bool:
        """Whether the program knew of the error and went on, as far as that was seen."""
        return all(handled(timeline, e) or torchs_own(timeline, e) for e in self.errors)


def failures(timeline: Timeline) -> list[Failure]:
    """Every failed request of a process, in order of time."""
    found = [
        Failure(tid=r.tid, t=r.t, data=r.data, request=r, where=r.where)
        for r in timeline.memory.requests
    ]
    by_error = {f.data.error: f for f in found if f.data.error is not None}
    observed = [f for f in found if f.data.seen == "allocator"]
    for error in timeline.errors:
        link = next((link for link in error.chain if is_of(link)), None)
        if link is None:
            continue
        failure = by_error.get(link.id) or _before(observed, error)
        if failure is None:
            failure = Failure(
                tid=error.tid,
                t=error.t,
                data=_from_text(link),
                where=tuple(reversed(link.frames)),
            )
            found.append(failure)
        by_error[link.id] = failure
        failure.errors.append(error)
    return sorted(found, key=lambda failure: failure.t)


def is_of(link: ErrorLink) -> bool:
    """Whether an exception says that memory ran out."""
    return is_out_of_memory(link.type, link.message)


def dense_calls(timeline: Timeline, failure: Failure) -> tuple[list[DenseCall], bool]:
    """The dense call outside compiled code that a request was for, and whether its frame says so.

    Otherwise its size does: it asked for a tensor of B x H x Q x KV elements, in a thread that had
    attended densely just before, or in autograd's for one that had. Of autograd's thread, which
    works for several, one call of each caller for whom it may have been.
    """
    data = failure.data
    tids = {failure.tid, *timeline.callers_of(failure.tid)}
    own = [call for call in timeline.dense if call.t <= failure.t and call.tid in tids]
    same = [call for call in own if call.device in {"", data.device} or data.device == "cuda"]
    if data.doing in {"dense_attention", "dense_backward"}:
        sized = [call for call in same if not data.sizes or call.shape[:3] == data.sizes[:3]]
        return _last_of_each(sized or same or own), True
    asked = data.asked
    if data.doing or asked is None or asked < _WORTH_MATCHING:
        return [], False
    slack = 0 if data.device == CPU else _CUDA_SLACK

    def fits(call: DenseCall) -> bool:
        return matches(asked, need_of(call.scores_bytes, call.dtype).requests, slack)

    return [call for call in _last_of_each(same) if fits(call)], False


def _last_of_each(calls: Iterable[DenseCall]) -> list[DenseCall]:
    """The last call of each thread."""
    return list({call.tid: call for call in calls}.values())


def in_words(failure: Failure) -> str:
    """``asked for 2.0 GiB of `cuda:0```, and what was known then, as the rest of a sentence."""
    data = failure.data
    asked = size(data.asked) if data.asked is not None else "memory"
    rest = []
    if data.allocated:
        kind = "resident" if data.device == CPU else "allocated"
        rest.append(f"{size(data.allocated)} were {kind}")
    if data.reserved:
        rest.append(f"{size(data.reserved)} reserved")
    if data.free is not None:
        rest.append(f"{size(data.free)} free on the device")
    if data.cap is not None and data.device == CPU:
        # RLIMIT_DATA: private writable mappings count whole, however little of them is resident.
        rest.append(
            f"the process's data was bounded to {size(data.cap)}, which counts what is reserved "
            "and not yet used"
        )
    elif data.cap is not None:
        rest.append(f"the process was bounded to {size(data.cap)}")
    elif data.total:
        rest.append(f"the device has {size(data.total)}")
    return f"asked for {asked} on `{data.device}`" + (f"; {words.listing(rest, 9)}" if rest else "")


def statement(timeline: Timeline, failure: Failure) -> Statement:
    """That the request failed."""
    times = failure.data.count
    more = f" ({words.times(times)} by then)" if times > 1 else ""
    text = f"`{timeline.name(failure.tid)}` {in_words(failure)}: it failed{more}."
    return Statement(text, "observed", words.seqs(failure.seqs))


def stacks(timeline: Timeline, found: Sequence[Failure]) -> tuple[Stack, ...]:
    """Where the first two of them were made."""
    return tuple(
        words.stack(timeline, f.tid, "ran out of memory", f.where, min(f.seqs)) for f in found[:2]
    )


def seqs(found: Iterable[Failure]) -> frozenset[int]:
    """The events of all of them."""
    return frozenset(seq for failure in found for seq in failure.seqs)


def _before(observed: list[Failure], error: ErrorSeen) -> Failure | None:
    """The request that the allocator's observer saw last before an error, in its thread if any."""
    open_ = [failure for failure in observed if not failure.errors and failure.t <= error.t]
    own = [failure for failure in open_ if failure.tid == error.tid]
    fitting = own or open_
    return fitting[-1] if fitting else None


def _from_text(link: ErrorLink) -> OutOfMemoryData:
    return OutOfMemoryData(
        device=device_of(link.type, link.message),
        asked=asked_of(link.message),
        doing=_doing(link.frames),
        error=link.id,
    )


def _doing(frames: Iterable[Frame]) -> Doing:
    for frame in reversed(tuple(frames)):
        if frame.file.endswith(_FLEX_FILE) and not frame.user:
            if frame.function in _DENSE_FRAMES:
                return "dense_attention"
            if frame.function in _MASK_FRAMES:
                return "block_mask"
    return ""
