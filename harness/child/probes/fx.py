"""FX traces: while one runs, the FX-tracing flag is set, for all threads up to torch 2.13.

``make_fx``, AOTAutograd and ``torch.fx.symbolic_trace`` all go through ``Tracer.trace``, which is
where the flag is set.
"""

import functools
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
                return original(self, *args, **kwargs)
            finally:
                _end(recorder, begun)

        symbols.FX_TRACE.replace(symbols.stands_for(original, trace))


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
