"""How much memory dense attention needs, and how that compares with what a run has used.

Torch's dense kernel (``math_attention`` and ``sdpa_dense_backward`` in
``torch/_higher_order_ops/flex_attention.py``) computes in float32, in float64 if the query is that.
At its peak the forward holds three copies of the scores in that type (as multiplied, masked, after
the softmax) and a boolean of each, and the backward six copies and one in the query's own type.
Counted from the allocator's events on CPU, with torch 2.11.0, 2.13.0 and 2.14.1 alike, forward and
backward take 13.1 and 28.5 bytes an element in float32, 13.1 and 26.2 in bfloat16 and float16, 25.3
and 56.9 in float64. On an H200 (torch 2.11.0, bfloat16) 32 heads, 8,192 queries and 16,384 keys
took 105 GiB with backward, where this gives 104.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.events.memory import size
from harness.statements import Statement
from harness.timeline.memory import Peak
from harness.timeline.model import DenseCall
from harness.timeline.timeline import Timeline

_OWN_SIZE = {"torch.float64": 8, "torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}
_FORWARD_COPIES, _BACKWARD_COPIES = 3, 6
_ROUNDED = 0.005
"""How far off a size may be that a text gives in gibibytes with two decimals."""


@dataclass(frozen=True)
class Need:
    """What one dense call needs, in bytes. ``elements``: B x H x Q x KV."""

    elements: int
    own_size: int
    working_size: int

    @property
    def forward(self) -> int:
        """The peak of the forward."""
        return self.elements * (_FORWARD_COPIES * self.working_size + 1)

    @property
    def backward(self) -> int:
        """The peak of the backward."""
        return self.elements * (_BACKWARD_COPIES * self.working_size + self.own_size)

    @property
    def requests(self) -> tuple[int, ...]:
        """Sizes of the tensors of that many elements that the kernel asks for."""
        return tuple(self.elements * size for size in {1, self.own_size, self.working_size})


def need_of(scores_bytes: int, dtype: str) -> Need:
    """What a dense call needs whose scores take ``scores_bytes`` in the query's own ``dtype``."""
    own = _OWN_SIZE.get(dtype, 1)
    return Need(scores_bytes // own, own, 8 if own == 8 else 4)


def measured(timeline: Timeline, call: DenseCall) -> Peak | None:
    """The peak of that dense call, if it was measured: recorded by its thread, next after it."""
    later = [p for p in timeline.memory.dense if p.tid == call.tid and p.seq > call.seq]
    first = min(later, key=lambda peak: peak.seq, default=None)
    if first is None:
        return None
    between = range(call.seq + 1, first.seq)
    other = any(d.tid == call.tid and d.seq in between for d in timeline.dense)
    return None if other else first


def needed(timeline: Timeline, call: DenseCall) -> list[Statement]:
    """What the largest dense call needs by its sizes, and what was measured."""
    need = need_of(call.scores_bytes, call.dtype)
    if not need.elements:
        return []
    text = (
        f"Dense attention of that size needs {size(need.forward)} for the forward and "
        f"{size(need.backward)} for a backward (B x H x Q x KV = {need.elements:,} "
        f"elements, held {_FORWARD_COPIES} and {_BACKWARD_COPIES} times in "
        f"{8 * need.working_size}-bit floats)"
    )
    peak = measured(timeline, call)
    if peak is None:
        return [Statement(f"{text}.", "inferred", (call.seq,))]
    data = peak.data
    took = data.peak - data.before
    most = f"{size(took)} more than before it were in use on `{data.device}` during the call"
    if not data.exact:
        most = f"the run's peak, {size(data.peak)} on `{data.device}`, was not passed by it"
    failed = [r for r in timeline.memory.requests if r.tid == call.tid and call.seq < r.seq]
    end = ", which ran out of memory" if failed and failed[0].seq < peak.seq else ""
    return [
        Statement(f"{text}.", "inferred", (call.seq,)),
        Statement(f"Measured: {most}{end}.", "observed", (call.seq, peak.seq)),
    ]


def matches(asked: int, sizes: Sequence[int], slack: int) -> bool:
    """Whether a request can be one of these sizes.

    Args:
        asked: bytes asked for, as recorded.
        sizes: bytes.
        slack: bytes that an allocator may round up by.
    """
    return any(
        size - _ROUNDED * size <= asked <= size + max(slack, _ROUNDED * size) for size in sizes
    )
