"""Builds timelines from events in one streaming pass that keeps only what causes need.

Events come in the order in which they were written: each thread's own events are in order, those
of different threads may be off by the time that a write takes.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from harness.events import schema
from harness.timeline import calls, ladder_words
from harness.timeline.eager import EagerCalls
from harness.timeline.folding import BOUNDS, Bounds, Folder
from harness.timeline.graphs import Graphs
from harness.timeline.model import HoldPass, SaidSeen, Thread
from harness.timeline.narrow import StepSeen
from harness.timeline.numbering import Numbering
from harness.timeline.points import Points
from harness.timeline.sharing import Shared
from harness.timeline.threads import Threads
from harness.timeline.timeline import Timeline

WARMUP_DONE = "warmup_done"
"""The phase by which a program says, once, that its warm-up is over."""

_MAX_PROBES = 256
_MAX_BEHALF = 256
_MAX_PASSES = 256
_MAX_SAID = 4096
_MAX_READS = 1 << 18
_TIME = operator.attrgetter("t_ns")


class Builder:
    """Feeds one process's events into a ``Timeline``."""

    def __init__(self, pid: int, bounds: Bounds = BOUNDS) -> None:
        self.timeline = Timeline(pid=pid)
        shared = Shared()
        self._threads = Threads(self.timeline)
        self._calls = calls.Calls(self.timeline, shared)
        self._points = Points(self.timeline, shared)
        self._eager = EagerCalls(self.timeline, shared)
        self._graphs = Graphs(self.timeline, shared)
        self._shared = shared
        self._folder = Folder(self.timeline, self._calls, self._points, bounds)
        self._numbering = Numbering()
        self._under_way: tuple[int, ...] = ()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            schema.Header: self._header,
            schema.Probe: self._probe,
            schema.Gpu: self._gpu,
            schema.ThreadStart: self._threads.started,
            schema.ThreadEnd: self._thread_end,
            schema.ThreadError: self._points.error,
            schema.FutureRead: self._future_read,
            schema.Wrapper: self._wrapper,
            schema.Eager: self._eager.call,
            schema.Stance: self._eager.stance,
            schema.GuardMiss: self._calls.guard_miss,
            schema.LockWait: self._calls.lock_wait,
            schema.Compile: self._calls.dynamo_compile,
            schema.CompileDetail: self._detail,
            schema.Reset: self._points.reset,
            schema.FxTrace: self._points.fx_trace,
            schema.BackwardCompile: self._points.backward_compile,
            schema.Backward: self._backward,
            schema.Autograd: self._autograd,
            schema.CudaGraph: self._graphs.cuda_graph,
            schema.Fork: self._graphs.fork,
            schema.Autotune: self._points.autotune,
            schema.DenseAttention: self._points.dense,
            schema.BlockMask: self._points.block_mask,
            schema.IsCompiling: self._points.compiling_read,
            schema.Phase: self._phase,
            schema.Caches: self._caches,
            schema.Invariants: self._invariants,
            schema.LeftOut: self._left_out,
            schema.HoldPass: self._hold_pass,
            schema.Schedule: self._schedule,
            schema.MemoryPeak: self.timeline.memory.peak,
            schema.MemoryCap: self.timeline.memory.cap,
            schema.OutOfMemory: self.timeline.memory.request,
            schema.Said: self._said,
            schema.End: self._end,
        }

    def add(self, event: schema.Event | StepSeen) -> None:
        """Take in the next event; one whose number was there before is left out."""
        timeline = self.timeline
        if not self._numbering.add(event.seq):
            return
        timeline.t0 = timeline.t0 or event.t_ns
        timeline.t1 = max(timeline.t1, event.t_ns)
        if isinstance(event, StepSeen):
            self._threads.steps((event,))
            return
        if isinstance(event, schema.Memory):  # the device's, whichever thread looked at it
            timeline.memory.sample(event)
            return
        event, thread = self._threads.meet(event)
        if thread is None:
            return
        if event.source:
            timeline.sources[event.seq] = event.source
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        ladder_words.note(thread, event)
        self._folder.after_event()

    def steps(self, steps: Sequence[StepSeen]) -> None:
        """Take in many steps at once, as ``add`` would one by one."""
        new = self._numbering.only_new(steps)
        if new:
            self._threads.steps(new)
            self.timeline.t0 = self.timeline.t0 or new[0].t_ns
            self.timeline.t1 = max(self.timeline.t1, *map(_TIME, new))

    def skip(self, seq: int) -> None:
        """Count an event that this reader does not know, so that it is not taken for lost."""
        self._numbering.add(seq)

    def finish(self, *, segments_deleted: bool) -> Timeline:
        """The timeline, complete. ``segments_deleted``: steady events were thrown away on disk."""
        # What was thrown away on purpose leaves gaps too, so nothing can be said then.
        if not segments_deleted:
            self.timeline.cut_off = self._numbering.excuse(self._under_way)
            if self.timeline.end_seq is not None:
                self.timeline.cut_off += self._numbering.excuse_from(self.timeline.end_seq + 1)
            self.timeline.lost = self._numbering.missing
            self.timeline.first_lost = self._numbering.first_missing
        self.timeline.repeated = self._numbering.repeated
        self._calls.finish()
        if self.timeline.warmup_done is not None:
            for history in self.timeline.codes.values():
                history.done = self.timeline.warmup_done[0]
        for backward in self.timeline.backward_compiles:
            known = self.timeline.forwards.get(backward.compile_id or "")
            backward.forward = backward.forward or known
        return self.timeline

    def _said(self, event: schema.Said) -> None:
        if len(self.timeline.said) < _MAX_SAID:
            said = SaidSeen(tid=event.tid, t=event.t_ns, seq=event.seq, text=event.data.text)
            self.timeline.said.append(said)

    def _thread(self, event: schema.BaseEvent) -> Thread:
        return self.timeline.threads[event.tid]

    def _header(self, event: schema.Header) -> None:
        self.timeline.header = self.timeline.header or event

    def _probe(self, event: schema.Probe) -> None:
        probes = self.timeline.probes
        if event.data.name in probes or len(probes) < _MAX_PROBES:
            probes[event.data.name] = event.data

    def _gpu(self, event: schema.Gpu) -> None:
        self.timeline.gpus = event.data.names

    def _thread_end(self, event: schema.ThreadEnd) -> None:
        self._thread(event).ended = True

    def _future_read(self, event: schema.FutureRead) -> None:
        read = self.timeline.futures_read
        if len(read) < _MAX_READS:
            read.add(event.data.future)
        elif event.data.future not in read:
            self.timeline.folded.reads += 1

    def _wrapper(self, event: schema.Wrapper) -> None:
        data = event.data
        thread = self._thread(event)
        internal = data.code is not None and data.code.internal
        if data.context is not None and thread.context is None:
            thread.context, thread.context_seq = self._shared.context(data.context), event.seq
        if not internal and thread.first_call is None:
            thread.first_call = event.t_ns
        self._calls.wrapper(event)
        self._eager.wrapper(event)
        if data.fx_flag:
            self._points.flagged(event)

    def _detail(self, event: schema.CompileDetail) -> None:
        self.timeline.detail = event.data
        self.timeline.detail_disagreed = event.data.metrics != event.data.compiles

    def _autograd(self, event: schema.Autograd) -> None:
        # A thread of C++ that no backward called is none of autograd's.
        if event.data.behalf_tids:
            thread = self._thread(event)
            thread.device = event.data.device or thread.device
            if len(thread.behalf) < _MAX_BEHALF:
                thread.behalf = tuple(dict.fromkeys((*thread.behalf, *event.data.behalf_tids)))

    def _backward(self, event: schema.Backward) -> None:
        thread = self._thread(event)
        thread.backwards = max(thread.backwards, event.data.count)
        if event.data.error:
            self._graphs.backward_failed(event)
            return
        self._calls.backward(thread)

    def _phase(self, event: schema.Phase) -> None:
        if event.data.name == WARMUP_DONE and self.timeline.warmup_done is None:
            self.timeline.warmup_done = (event.t_ns, event.seq)

    def _caches(self, event: schema.Caches) -> None:
        data = event.data
        if data.code.id not in self.timeline.codes and self.timeline.folded.codes:
            return  # one of those that are no longer told of
        history = self._calls.history(data.code)
        entries = (calls.without_raw(entry) for entry in data.entries)
        history.entries_at_end = tuple(entry for entry in entries if entry is not None)
        history.entries_left_out = data.left_out

    def _invariants(self, event: schema.Invariants) -> None:
        self.timeline.invariants = event

    def _left_out(self, event: schema.LeftOut) -> None:
        data, left_out = event.data, self.timeline.left_out
        left_out[data.of] = max(data.count, left_out.get(data.of, 0))

    def _hold_pass(self, event: schema.HoldPass) -> None:
        data = event.data
        if len(self.timeline.passes) >= _MAX_PASSES:
            return
        self.timeline.passes.append(
            HoldPass(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                number=data.number,
                hold=data.hold,
                waited_s=data.waited_s,
            )
        )

    def _schedule(self, event: schema.Schedule) -> None:
        self.timeline.schedule = event.data

    def _end(self, event: schema.End) -> None:
        self.timeline.end_seq = event.seq
        self._under_way = event.data.under_way
        self.timeline.exit_text = event.data.exit_text
