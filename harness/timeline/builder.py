"""Builds timelines from events in one streaming pass that keeps only what causes need.

Events come in the order in which they were written: each thread's own events are in order, those
of different threads may be off by the time that a write takes.
"""

from typing import TYPE_CHECKING, Any, TypeVar

from harness.events import schema
from harness.timeline import calls, ladders
from harness.timeline.model import (
    BackwardCompile,
    BlockMask,
    DenseCall,
    ErrorSeen,
    FlaggedCall,
    FxTrace,
    Span,
    Thread,
)
from harness.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

SpanT = TypeVar("SpanT", bound=Span)

WARMUP_DONE = "warmup_done"
CUT_STACK = 24
"""A recorded stack of this many frames may have lost its outermost ones."""


class Builder:
    """Feeds one process's events into a ``Timeline``."""

    def __init__(self, pid: int) -> None:
        self.timeline = Timeline(pid=pid)
        self._calls = calls.Calls(self.timeline)
        self._seqs = _Seqs()
        self._open: dict[tuple[int, type[Span]], list[Span]] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            schema.Header: self._header,
            schema.Probe: self._probe,
            schema.Gpu: self._gpu,
            schema.ThreadStart: self._thread_start,
            schema.ThreadEnd: self._thread_end,
            schema.ThreadError: self._thread_error,
            schema.FutureRead: self._future_read,
            schema.Wrapper: self._wrapper,
            schema.GuardMiss: self._calls.guard_miss,
            schema.LockWait: self._calls.lock_wait,
            schema.Compile: self._calls.dynamo_compile,
            schema.CompileDetail: self._detail,
            schema.FxTrace: self._fx_trace,
            schema.BackwardCompile: self._backward_compile,
            schema.Backward: self._backward,
            schema.DenseAttention: self._dense,
            schema.BlockMask: self._block_mask,
            schema.Step: self._step,
            schema.Phase: self._phase,
            schema.Caches: self._caches,
            schema.Invariants: self._invariants,
            schema.End: self._end,
        }

    def add(self, event: schema.Event) -> None:
        """Take in the next event."""
        timeline = self.timeline
        timeline.t0 = timeline.t0 or event.t_ns
        timeline.t1 = max(timeline.t1, event.t_ns)
        self._seqs.add(event.seq)
        thread = timeline.threads.get(event.tid)
        if thread is None:
            thread = timeline.threads[event.tid] = Thread(event.tid, event.thread, t0=event.t_ns)
        thread.t0 = thread.t0 or event.t_ns
        thread.name = event.thread
        thread.t1, thread.last_seq = event.t_ns, event.seq
        if event.where and thread.tid != timeline.main_tid:
            _tell_autograd(thread, event)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        ladders.note(thread, event)

    def skip(self, seq: int) -> None:
        """Count an event that this reader does not know, so that it is not taken for lost."""
        self._seqs.add(seq)

    def finish(self, *, segments_deleted: bool) -> Timeline:
        """The timeline, complete. ``segments_deleted``: steady events were thrown away on disk."""
        # What was thrown away on purpose leaves gaps too, so nothing can be said then.
        self.timeline.lost = 0 if segments_deleted else self._seqs.missing
        return self.timeline

    def _thread(self, event: schema.BaseEvent) -> Thread:
        return self.timeline.threads[event.tid]

    def _header(self, event: schema.Header) -> None:
        self.timeline.header = self.timeline.header or event

    def _probe(self, event: schema.Probe) -> None:
        self.timeline.probes[event.data.name] = event.data

    def _gpu(self, event: schema.Gpu) -> None:
        self.timeline.gpus = event.data.names

    def _thread_start(self, event: schema.ThreadStart) -> None:
        data = event.data
        thread = self.timeline.threads.setdefault(
            data.child_tid, Thread(data.child_tid, data.name, t0=event.t_ns)
        )
        thread.creator, thread.creation = event.tid, event.where
        thread.autograd = False
        thread.creation_seq = event.seq
        ladders.started(thread, self.timeline.name(event.tid), event)

    def _thread_end(self, event: schema.ThreadEnd) -> None:
        self._thread(event).ended = True

    def _thread_error(self, event: schema.ThreadError) -> None:
        data = event.data
        if data.chain:
            self.timeline.errors.append(
                ErrorSeen(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    via=data.via,
                    chain=data.chain,
                    future=data.future,
                )
            )

    def _future_read(self, event: schema.FutureRead) -> None:
        self.timeline.futures_read.add(event.data.future)

    def _wrapper(self, event: schema.Wrapper) -> None:
        data = event.data
        thread = self._thread(event)
        internal = data.code is not None and data.code.internal
        if data.context is not None and thread.context is None:
            thread.context, thread.context_seq = data.context, event.seq
        if not internal and thread.first_call is None:
            thread.first_call = event.t_ns
        self._calls.wrapper(event)
        if data.fx_flag:
            self.timeline.flagged.append(
                FlaggedCall(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    code=data.code,
                    nested=data.nested,
                    tracing=data.tracing_tids,
                    compiling=data.compiling_tids,
                    count=data.count,
                    where=event.where,
                )
            )

    def _detail(self, event: schema.CompileDetail) -> None:
        self.timeline.detail = event.data
        self.timeline.detail_disagreed = event.data.metrics != event.data.compiles

    def _fx_trace(self, event: schema.FxTrace) -> None:
        if event.edge == "exit":
            self._close(FxTrace, event)
            return
        trace = FxTrace(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            tracer=event.data.tracer,
            in_compile=event.data.in_compile,
            where=event.where,
        )
        self.timeline.fx_traces.append(self._opened(trace, event))

    def _backward_compile(self, event: schema.BackwardCompile) -> None:
        data = event.data
        if event.edge == "exit":
            closed = self._close(BackwardCompile, event)
            if closed is not None:
                closed.ok, closed.error = data.ok, data.error
                closed.behalf = closed.behalf or data.behalf_tids
            return
        compile_ = BackwardCompile(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            compile_id=event.compile_id,
            behalf=data.behalf_tids,
            where=event.where,
        )
        self.timeline.backward_compiles.append(self._opened(compile_, event))

    def _backward(self, event: schema.Backward) -> None:
        self._thread(event).backwards = max(self._thread(event).backwards, event.data.count)

    def _dense(self, event: schema.DenseAttention) -> None:
        data = event.data
        if data.kind == "fallback":
            self.timeline.dense.append(
                DenseCall(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    shape=data.shape,
                    dtype=data.dtype,
                    scores_bytes=data.scores_bytes,
                    count=data.count,
                    where=event.where,
                )
            )

    def _block_mask(self, event: schema.BlockMask) -> None:
        data = event.data
        if event.edge == "exit":
            closed = self._close(BlockMask, event)
            if closed is not None:
                closed.error = data.error
            return
        mask = BlockMask(
            tid=event.tid,
            t0=event.t_ns,
            t1=event.t_ns if event.edge == "instant" else None,
            seqs=(event.seq,),
            compiling=data.compiling_tids,
            error=data.error,
            where=event.where,
        )
        self.timeline.block_masks.append(self._opened(mask, event))

    def _step(self, event: schema.Step) -> None:
        self._thread(event).steps += 1

    def _phase(self, event: schema.Phase) -> None:
        if event.data.name == WARMUP_DONE and self.timeline.warmup_done is None:
            self.timeline.warmup_done = event.t_ns

    def _caches(self, event: schema.Caches) -> None:
        history = self._calls.history(event.data.code)
        history.entries_at_end, history.entries_seq = event.data.entries, event.seq

    def _invariants(self, event: schema.Invariants) -> None:
        self.timeline.invariants = event

    def _end(self, event: schema.End) -> None:
        self.timeline.end_seq = event.seq

    def _opened(self, span: SpanT, event: schema.BaseEvent) -> SpanT:
        if event.edge == "enter":
            self._open.setdefault((event.tid, type(span)), []).append(span)
        return span

    def _close(self, kind: type[SpanT], event: schema.BaseEvent) -> SpanT | None:
        spans = self._open.get((event.tid, kind))
        if not spans:
            return None
        span = spans.pop()
        span.t1, span.seqs = event.t_ns, (*span.seqs, event.seq)
        return span if isinstance(span, kind) else None


def _tell_autograd(thread: Thread, event: schema.BaseEvent) -> None:
    """Tell autograd's threads by how their stack begins: in a library, and not in ``threading``."""
    outermost = event.where[-1]
    python = outermost.user or outermost.file.endswith("threading.py")
    if python or thread.creator is not None or len(event.where) >= CUT_STACK:
        return
    thread.autograd = True


class _Seqs:
    """Counts the numbers missing from a sequence that arrives nearly in order."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self._seen = 0

    def add(self, seq: int) -> None:
        self._first = seq if self._first is None else min(self._first, seq)
        self._last = max(self._last, seq)
        self._seen += 1

    @property
    def missing(self) -> int:
        return 0 if self._first is None else max(self._last - self._first + 1 - self._seen, 0)
