"""FX traces: while one runs, the FX-tracing flag is set, for all threads up to torch 2.13.

``make_fx``, AOTAutograd and ``torch.fx.symbolic_trace`` all go through ``Tracer.trace``, which is
where the flag is set.
"""

import functools
from collections.abc import Callable
from typing import Any

from .. import nesting
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings


class FxProbe:
    """Wraps ``torch.fx.Tracer.trace``."""

    name = "fx"
    modules: tuple[str, ...] = (symbols.FX_TRACE.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks the method."""
        original = symbols.FX_TRACE.get()

        @functools.wraps(original)
        def trace(self: Any, *args: Any, **kwargs: Any) -> Any:
            begun = _begin(recorder, type(self).__name__)
            try:
                if recorder.schedule is not None:
                    return _scheduled(recorder, self, original, args, kwargs)
                return original(self, *args, **kwargs)
            finally:
                _end(recorder, begun)

        symbols.FX_TRACE.replace(symbols.stands_for(original, trace))


class _Held:
    """The edges of one trace, reached where the flag is set and the patches are in place.

    ``Tracer.trace`` sets the flag, patches ``nn.Module`` and calls the root, whose first operation
    is then put down as a node, as is the output in the end. AOTAutograd has put its metadata in
    place by then. The method that makes nodes is looked up in the tracer, so it is put in its place
    there, for this trace alone.
    """

    def __init__(self, recorder: Recorder, tracer: Any) -> None:
        self._recorder = recorder
        self._tracer = tracer
        self._left = {"enter", "exit"}

    def reach(self, edge: str) -> None:
        """Be at an edge, once."""
        if edge in self._left:
            self._left.discard(edge)
            self._recorder.reach("fx_trace", edge)

    def put(self) -> None:
        """Be told of the nodes."""
        make_node: Callable[..., Any] = self._tracer.create_node

        def create_node(kind: str, *args: Any, **kwargs: Any) -> Any:
            if kind not in {"placeholder", "get_attr"}:
                self.reach("enter")
            node = make_node(kind, *args, **kwargs)
            if kind == "output":
                self.reach("exit")
            return node

        self._tracer.create_node = create_node

    def take_back(self) -> None:
        """Leave the tracer as it was."""
        self._tracer.__dict__.pop("create_node", None)


def _scheduled(
    recorder: Recorder,
    tracer: Any,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    held = _Held(recorder, tracer)
    held.put()
    try:
        return original(tracer, *args, **kwargs)
    finally:
        held.take_back()
        held.reach("enter")  # it failed before
        held.reach("exit")


def _begin(recorder: Recorder, tracer: str) -> dict[str, Any] | None:
    """Record the start of a trace; return its data if it was worth writing."""
    local = recorder.local
    nesting.enter(recorder.tracing, local.tid)
    local.traces += 1
    in_compile = bool(local.compiles)
    data = {"tracer": tracer, "in_compile": in_compile}
    compile_id = local.compiles[-1] if in_compile else None
    written = recorder.emit_counted(
        "fx_trace", (tracer, in_compile), data, edge="enter", compile_id=compile_id, stack=True
    )
    return data if written else None


def _end(recorder: Recorder, data: dict[str, Any] | None) -> None:
    local = recorder.local
    local.traces -= 1
    nesting.leave(recorder.tracing, local.tid)
    if data is not None:
        compile_id = local.compiles[-1] if local.compiles else None
        recorder.emit("fx_trace", data, edge="exit", compile_id=compile_id)


PROBE = FxProbe()
