"""CUDA graphs: which thread captures one, and whether several threads replay it."""

import functools
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from .. import nesting, torch_files
from .. import torch_symbols as symbols
from ..errors import in_words
from ..recorder import Recorder
from ..settings import Settings

_ATTRIBUTE = "__compile_race_graph__"
_numbers = itertools.count(1)


@dataclass
class _Graph:
    """What is known of a graph; written by whoever uses it, and races here cost one event."""

    number: int
    captured: int | None = None
    last: int | None = None
    stream: int | None = None
    seen: set[int] = field(default_factory=set)
    inside: dict[int, int] = field(default_factory=dict)
    capturing: bool = False


class CudaGraphsProbe:
    """Wraps the capture and the replay of ``torch.cuda.CUDAGraph``, which inductor uses as well."""

    name = "cuda_graphs"
    modules: tuple[str, ...] = (symbols.REPLAY_GRAPH.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks a symbol; nothing is wrapped then."""
        begin, end = symbols.CAPTURE_BEGIN.get(), symbols.CAPTURE_END.get()
        replay = symbols.REPLAY_GRAPH.get()
        symbols.CAPTURE_BEGIN.replace(_wrap_begin(begin, recorder))
        symbols.CAPTURE_END.replace(_wrap_end(end, recorder))
        symbols.REPLAY_GRAPH.replace(_wrap_replay(replay, recorder))


def _wrap_begin(original: Callable[..., None], recorder: Recorder) -> Callable[..., None]:
    @functools.wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        graph = _of(self)
        # Before CUDA begins: a call of another thread that it refuses may come at once.
        _capture(recorder, graph, sys._getframe(1), args, kwargs)  # noqa: SLF001
        try:
            original(self, *args, **kwargs)
        except Exception as error:
            _captured(recorder, graph, in_words(error))
            raise

    return capture_begin


def _wrap_end(original: Callable[..., None], recorder: Recorder) -> Callable[..., None]:
    @functools.wraps(original)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
        graph, error = _of(self), ""
        try:
            original(self, *args, **kwargs)
        except Exception as failure:
            error = in_words(failure)
            raise
        finally:
            _captured(recorder, graph, error)

    return capture_end


def _wrap_replay(original: Callable[..., None], recorder: Recorder) -> Callable[..., None]:
    local = recorder.local

    @functools.wraps(original)
    def replay(self: Any, *args: Any, **kwargs: Any) -> None:
        graph, tid = _of(self), local.tid
        if graph.last != tid:
            _replay(recorder, graph, sys._getframe(1))  # noqa: SLF001
            graph.last = tid
        nesting.enter(graph.inside, tid)
        try:
            original(self, *args, **kwargs)
        finally:
            nesting.leave(graph.inside, tid)

    return replay


def _of(graph: Any) -> _Graph:
    known = graph.__dict__.get(_ATTRIBUTE)
    if known is None:  # of two threads the one that comes first makes it
        known = graph.__dict__.setdefault(_ATTRIBUTE, _Graph(next(_numbers)))
    return known  # type: ignore[no-any-return]


def _capture(
    recorder: Recorder,
    graph: _Graph,
    caller: FrameType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    try:
        graph.captured = recorder.local.tid
        # The mode is the second parameter after the graph, and "global" by default.
        mode = kwargs.get("capture_error_mode", args[1] if len(args) > 1 else "global")
        data = {
            "graph": graph.number,
            "what": "capture",
            "mode": str(mode),
            "trees": _by_trees(caller),
        }
        kind = ("capture", data["trees"])
        graph.capturing = bool(
            recorder.emit_counted("cuda_graph", kind, data, edge="enter", stack=True)
        )
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


def _captured(recorder: Recorder, graph: _Graph, error: str) -> None:
    if graph.capturing:
        graph.capturing = False
        data = {"graph": graph.number, "what": "capture", "error": error}
        recorder.emit("cuda_graph", data, edge="exit")


def _replay(recorder: Recorder, graph: _Graph, caller: FrameType) -> None:
    """Record that another thread than before replays a graph; never raises."""
    try:
        tid, before = recorder.local.tid, graph.last
        stream = sys.modules["torch"].cuda.current_stream().cuda_stream
        again = tid in graph.seen
        graph.seen.add(tid)
        moved = before is not None and stream != graph.stream
        graph.stream = stream
        if before is None and tid == graph.captured:
            return  # who captures a graph may well be the one to replay it
        count = recorder.counted("cuda_graph", graph.number)
        if not count:
            return
        data = {
            "graph": graph.number,
            "what": "replay",
            "trees": _by_trees(caller),
            "captured_tid": graph.captured,
            "before_tid": before,
            "again": again,
            "other_stream": moved,
            "inside_tids": nesting.others(graph.inside, tid),
            "count": count,
        }
        recorder.emit("cuda_graph", data, stack=True)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


def _by_trees(caller: FrameType) -> bool:
    """Whether inductor's graph trees are near on the stack."""
    frame: FrameType | None = caller
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(torch_files.GRAPH_TREES_FILE):
            return True
        frame = frame.f_back
    return False


PROBE = CudaGraphsProbe()
