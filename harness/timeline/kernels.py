"""What threads do with CUDA graphs and with kernels that triton tunes; see ``model``."""

from dataclasses import dataclass
from typing import Literal

from harness.events.values import Frame
from harness.timeline.model import MeetingSpan, Span


@dataclass(slots=True, kw_only=True)
class GraphCapture(Span):
    """A capture of the CUDA graph number ``graph``; ``mode``: its ``capture_error_mode``."""

    graph: int
    mode: str
    trees: bool
    error: str = ""
    where: tuple[Frame, ...] = ()


@dataclass(slots=True, kw_only=True)
class GraphReplay:
    """A replay of a CUDA graph by another thread than the one before.

    ``harness.events.graphs.CudaGraphData`` says more of the fields.
    """

    tid: int
    t: int
    seq: int
    graph: int
    trees: bool
    captured: int | None
    before: int | None
    again: bool
    other_stream: bool
    inside: tuple[int, ...]
    count: int
    where: tuple[Frame, ...]


@dataclass(slots=True, kw_only=True)
class Tuning(MeetingSpan):
    """A call that tuned the triton kernel number ``kernel``, and called it if nothing failed.

    ``harness.events.kernels.AutotuneData`` says more of the fields.
    """

    kernel: int
    name: str
    arguments: Literal["", "own", "others", "gone"] = ""
