"""Block masks being built, and what goes wrong when another thread compiles meanwhile.

``BlockMask.from_kv_blocks`` and ``create_block_mask`` order their blocks in a function that, from
torch 2.13 on, annotates FX metadata that all threads share.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from .. import nesting
from .. import torch_symbols as symbols
from ..errors import in_words
from ..recorder import Recorder
from ..settings import Settings


class BlockMaskProbe:
    """Wraps the module global ``_dense_to_ordered``; dynamo goes on tracing the original."""

    name = "block_mask"
    modules: tuple[str, ...] = (symbols.DENSE_TO_ORDERED.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Wrap. Raises Unavailable if this torch lacks the function."""
        original = symbols.DENSE_TO_ORDERED.get()
        run = original if recorder.schedule is None else _scheduled(original, recorder)

        @functools.wraps(original)
        def _dense_to_ordered(*args: Any, **kwargs: Any) -> Any:
            compiling = _others_compiling(recorder)
            try:
                result = run(*args, **kwargs)
            except BaseException as error:
                _record(recorder, compiling, error)
                raise
            _record(recorder, compiling, None)
            return result

        symbols.DENSE_TO_ORDERED.replace(symbols.stands_for(original, _dense_to_ordered))


def _scheduled(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """``original`` with the point's edges inside its annotation, which is around a sort."""
    overrides: Any = sys.modules[symbols.FUNCTION_MODES.module]

    class AtTheSort(overrides.TorchFunctionMode):  # type: ignore[misc]
        """Sees the torch functions that are called below it."""

        def __init__(self) -> None:
            super().__init__()
            self.reached = False

        def __torch_function__(
            self,
            function: Any,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            if function.__name__ != symbols.ANNOTATED_CALL or self.reached:
                return function(*args, **(kwargs or {}))
            self.reached = True
            recorder.reach("block_mask", "enter")
            try:
                return function(*args, **(kwargs or {}))
            finally:
                recorder.reach("block_mask", "exit")

    def run(*args: Any, **kwargs: Any) -> Any:
        mode = AtTheSort()
        try:
            with mode:
                return original(*args, **kwargs)
        finally:
            if not mode.reached:
                recorder.reach("block_mask", "enter")
                recorder.reach("block_mask", "exit")

    return run


def _others_compiling(recorder: Recorder) -> list[int]:
    # As a rule nobody is: then not even this thread's number is asked for.
    return nesting.others(recorder.compiling, recorder.local.tid) if recorder.compiling else []


def _record(recorder: Recorder, compiling: list[int], error: BaseException | None) -> None:
    """Write one event for a mask part that was built, or was not. Never raises."""
    try:
        tids = {*compiling, *_others_compiling(recorder)}
        count = recorder.counted("block_mask", (bool(tids), type(error)))
        if not count:
            return
        data: dict[str, Any] = {"compiling_tids": sorted(tids), "count": count}
        if error is not None:
            data["error"] = in_words(error)
        recorder.emit("block_mask", data, stack=True)
    except Exception:  # noqa: BLE001 - the watch must never break the program it watches
        recorder.lost += 1


PROBE = BlockMaskProbe()
