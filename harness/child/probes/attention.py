"""Dense attention: the whole matrix of scores, which compiled ``flex_attention`` never makes.

The operator below ``flex_attention`` has a dense kernel of its own. Two things lead to it: a call
that was not compiled (a fallback), and a compiled graph whose backend runs the operator as it is,
as ``aot_eager`` does on purpose (the reference kernel). The stack tells them apart.
"""

import functools
import sys
from typing import Any

from .. import graphs, torch_code
from .. import torch_symbols as symbols
from ..memory_use import Meter
from ..recorder import Recorder
from ..settings import Settings


class AttentionProbe:
    """Wraps the module global ``math_attention``."""

    name = "attention"
    modules: tuple[str, ...] = (symbols.MATH_ATTENTION.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Wrap. Raises Unavailable if this torch lacks the function."""
        original = symbols.MATH_ATTENTION.get()
        measure = "memory" not in settings.disabled_probes

        @functools.wraps(original)
        def math_attention(*args: Any, **kwargs: Any) -> Any:
            # Before the call: it may be the one that runs out of memory.
            device, local = "", recorder.local
            traced = local.compiles or local.traces
            if not traced:
                try:
                    device = _record(recorder, args, kwargs)
                except Exception:  # noqa: BLE001 - the watch must never break what it watches
                    recorder.lost += 1
            scheduled = recorder.schedule is not None and not traced
            if scheduled:
                recorder.reach("dense_attention", "enter")
            meter = Meter(recorder, device) if measure and device else None
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                # A program may go on with fewer tokens, and nothing else tells of a processor's.
                recorder.failing(error, sys._getframe(1))  # noqa: SLF001 - who called
                raise
            finally:
                if meter is not None:
                    meter.record()
                if scheduled:
                    recorder.reach("dense_attention", "exit")

        symbols.MATH_ATTENTION.replace(symbols.stands_for(original, math_attention))


def _record(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Write one event; return the device of a fallback if it was written, else nothing."""
    query = args[0] if args else kwargs["query"]
    key = args[1] if len(args) > 1 else kwargs["key"]
    kind_of_tensor: Any = type(query)
    if torch_code.is_fake(kind_of_tensor):
        return ""
    compiled = graphs.caller_in_compiled_graph(2)
    kind = "reference" if compiled else "fallback"
    count = recorder.counted("dense_attention", kind)
    if not count:
        return ""
    with symbols.DISABLE_TORCH_FUNCTION.get()():
        shape, keys = list(query.shape), key.shape[-2]
        size, dtype = query.element_size(), str(query.dtype)
        device = str(query.device)
    batch, heads, queries = shape[:3]
    data = {
        "kind": kind,
        "count": count,
        "shape": shape,
        "dtype": dtype,
        "device": device,
        "scores_bytes": batch * heads * queries * keys * size,
    }
    written = recorder.emit("dense_attention", data, stack=True)
    return device if written and not compiled else ""


PROBE = AttentionProbe()
