"""What torch's trace log says of a compile, and the check that it says so of each one.

Attached to ``torch.__trace``, which emits on the compiling thread and needs no level; torch writes
no file for it. A program that clears the logger's handlers silences it, which the check brings out.
"""

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any

from . import torch_symbols as symbols
from . import unseen
from .recorder import Recorder

#: Where ``ThreadState.scratch`` keeps the thread's compiles, innermost last.
_OPEN = "detail"
#: The records that are taken: one with a compile's metrics, and the artifact with its reasons.
_METRICS, _ARTIFACT, _REASONS = "compilation_metrics", "artifact", "recompile_reasons"


class _Open:
    """A compile that this thread is inside of: its reasons, and its metrics records if it has own.

    Torch records one set of metrics for the outermost compile of a thread only.
    """

    def __init__(self, reasons: list[str], *, counted: bool) -> None:
        self.reasons = reasons
        self.counted = counted
        self.records = 0


class Detail(logging.Handler):
    """Hears the reasons of recompiles, and counts metrics records against compiles."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        # Counted by threads that hold dynamo's compile lock, so by one at a time.
        self._compiles = 0
        self._records = 0
        self._agreed = True

    def createLock(self) -> None:  # noqa: N802 - logging's name
        """Do without a lock: nothing here is shared, and a compile must not wait for us."""
        self.lock = None

    def attach(self) -> None:
        """Start to listen. Raises Unavailable if this torch has no such log.

        With a handler attached torch formats its records, in functions of the standard library
        that dynamo would compile where a compiled frame was left at a graph break.
        """
        code = symbols.TRACE_STRUCTURED.get().__code__
        unseen.stop_dynamo_below(code)
        logger = logging.getLogger(symbols.TRACE_LOGGER)
        logger.addHandler(self)
        logger.handlers = Listeners(logger.handlers, code)

    def compile_begins(self, reasons: list[str]) -> None:
        """Note that this thread enters ``_compile``; reasons will be appended to ``reasons``."""
        stack = self._recorder.local.scratch.setdefault(_OPEN, [])
        stack.append(_Open(reasons, counted=not stack and not _metrics_in_progress()))

    def compile_ends(self) -> None:
        """Note that this thread leaves ``_compile``; the first disagreement is recorded."""
        stack = self._recorder.local.scratch.get(_OPEN)
        if not stack:
            return
        ended = stack.pop()
        if not ended.counted:
            return
        self._compiles += 1
        self._records += ended.records
        if self._agreed and self._compiles != self._records:
            self._agreed = False
            self.record()

    def record(self) -> None:
        """Write the two counts."""
        data = {"metrics": self._records, "compiles": self._compiles}
        self._recorder.emit("compile_detail", data)

    def emit(self, record: logging.LogRecord) -> None:
        """Take what is wanted from one record. Never raises."""
        try:
            self._take(record)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1

    def _take(self, record: logging.LogRecord) -> None:
        metadata: dict[str, Any] = record.__dict__.get("metadata") or {}
        metrics = metadata.get(_METRICS)
        stack: list[_Open] = self._recorder.local.scratch.get(_OPEN) or []
        if metrics is not None:
            if stack and stack[0].counted:
                stack[0].records += 1
            elif metrics.get("is_forward"):  # a compile that the wrap of ``_compile`` did not see
                self._records += 1
        elif stack and (metadata.get(_ARTIFACT) or {}).get("name") == _REASONS:
            stack[-1].reasons.extend(_reasons(record.__dict__.get("payload")))


class Listeners(list[logging.Handler]):
    """The trace log's handlers, of which torch asks whether there are any before each record.

    If there are it gathers the record: the text of a graph, a stack, descriptions of tensors, all
    together seven percent of a cold compile. So while ``Detail`` alone listens the answer is yes to
    the records that it takes, and no to the others.
    """

    def __init__(self, handlers: Iterable[logging.Handler], asks: CodeType) -> None:
        """``asks`` is the code of torch's ``trace_structured``."""
        super().__init__(handlers)
        self._asks = asks

    def __bool__(self) -> bool:
        if not len(self):
            return False
        frame = sys._getframe(1)  # noqa: SLF001 - who asks
        if frame.f_code is not self._asks or not all(isinstance(one, Detail) for one in self):
            return True
        try:
            return _is_taken(frame.f_locals)
        except Exception:  # noqa: BLE001 - another trace_structured than the known ones
            return True


def _is_taken(record: Mapping[str, Any]) -> bool:
    """Whether ``Detail`` takes the record that ``trace_structured`` was called with."""
    if record["name"] == _ARTIFACT:
        return bool(record["metadata_fn"]()["name"] == _REASONS)
    return bool(record["name"] == _METRICS)


def _reasons(payload: object) -> list[str]:
    # Torch writes one reason as it is and several as a JSON list.
    text = payload if isinstance(payload, str) else ""
    if text.startswith("["):
        try:
            return [str(reason).rstrip() for reason in json.loads(text)]
        except ValueError:
            pass
    return [text.rstrip()] if text.strip() else []


def _metrics_in_progress() -> bool:
    in_context = symbols.METRICS_CONTEXT.find()
    return in_context is not None and bool(in_context().in_progress())
