"""What threads did besides calling: traces, backward compiles, block masks, dense calls, errors."""

from typing import TypeVar

import msgspec

from harness.events import schema
from harness.events.values import ErrorLink
from harness.timeline.kernels import Tuning
from harness.timeline.model import (
    BackwardCompile,
    BlockMask,
    CompilingRead,
    DenseCall,
    ErrorSeen,
    FlaggedCall,
    FxTrace,
    MeetingSpan,
    ResetSeen,
)
from harness.timeline.sharing import Shared, cut
from harness.timeline.spans import OpenSpans
from harness.timeline.timeline import Timeline

MeetingT = TypeVar("MeetingT", bound=MeetingSpan)

_MAX_MEETINGS = 4096
"""So many of a kind are kept, the first ones; the recorder has thinned them out already."""


class Points:
    """Feeds these points' events into a timeline."""

    def __init__(self, timeline: Timeline, shared: Shared) -> None:
        self._timeline = timeline
        self._shared = shared
        self.open = OpenSpans()

    def flagged(self, event: schema.Wrapper) -> None:
        """A call of compiled code that found the FX flag set."""
        data = event.data
        self._timeline.flagged.append(
            FlaggedCall(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                code=data.code,
                nested=data.nested,
                tracing=data.tracing_tids,
                compiling=data.compiling_tids,
                count=data.count,
                where=self._shared.one(event.where),
            )
        )

    def reset(self, event: schema.Reset) -> None:
        """Dynamo began to be reset, or had been."""
        data = event.data
        seen = ResetSeen(
            tid=event.tid,
            t0=event.t_ns,
            t1=event.t_ns if event.edge == "exit" else None,
            seqs=(event.seq,),
            met=data.calling_tids,
            compiling=data.compiling_tids,
            error=cut(data.error),
            where=self._shared.one(event.where),
        )
        self._meeting(seen, event, self._timeline.resets)

    def autotune(self, event: schema.Autotune) -> None:
        """A triton kernel began to be tuned, or had been."""
        data = event.data
        tuning = Tuning(
            tid=event.tid,
            t0=event.t_ns,
            t1=event.t_ns if event.edge == "exit" else None,
            seqs=(event.seq,),
            kernel=data.kernel,
            name=data.name,
            met=data.met_tids,
            error=cut(data.error),
            arguments=data.arguments,
            where=self._shared.one(event.where),
        )
        closed = self._meeting(tuning, event, self._timeline.tunings)
        if closed is not None:
            closed.arguments = tuning.arguments

    def _meeting(
        self, seen: MeetingT, event: schema.BaseEvent, kept: list[MeetingT]
    ) -> MeetingT | None:
        """Keep a span as its event tells it; return the open one instead that the event ends."""
        closed = self.open.close(type(seen), event) if event.edge == "exit" else None
        if closed is not None:
            closed.met = tuple(dict.fromkeys((*closed.met, *seen.met)))
            closed.error = seen.error
        elif len(kept) < _MAX_MEETINGS:
            kept.append(self.open.opened(seen, event))
        return closed

    def fx_trace(self, event: schema.FxTrace) -> None:
        """A symbolic trace began or ended."""
        if event.edge == "exit":
            self.open.close(FxTrace, event)
            return
        trace = FxTrace(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            tracer=event.data.tracer,
            in_compile=event.data.in_compile,
            where=self._shared.one(event.where),
        )
        self._timeline.fx_traces.append(self.open.opened(trace, event))

    def backward_compile(self, event: schema.BackwardCompile) -> None:
        """A backward compile began or ended."""
        data = event.data
        if event.edge == "exit":
            closed = self.open.close(BackwardCompile, event)
            if closed is not None:
                closed.ok, closed.error = data.ok, cut(data.error)
                closed.behalf = closed.behalf or data.behalf_tids
            return
        compile_ = BackwardCompile(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            compile_id=event.compile_id,
            forward=self._timeline.forwards.get(event.compile_id or ""),
            behalf=data.behalf_tids,
            where=self._shared.one(event.where),
        )
        self._timeline.backward_compiles.append(self.open.opened(compile_, event))

    def block_mask(self, event: schema.BlockMask) -> None:
        """A block mask began or ended to be built."""
        data = event.data
        if event.edge == "exit":
            closed = self.open.close(BlockMask, event)
            if closed is not None:
                closed.error = cut(data.error)
            return
        mask = BlockMask(
            tid=event.tid,
            t0=event.t_ns,
            t1=event.t_ns if event.edge == "instant" else None,
            seqs=(event.seq,),
            compiling=data.compiling_tids,
            error=cut(data.error),
            where=self._shared.one(event.where),
        )
        self._timeline.block_masks.append(self.open.opened(mask, event))

    def compiling_read(self, event: schema.IsCompiling) -> None:
        """Eager code took another thread's compile for its own."""
        self._timeline.compiling_reads.append(
            CompilingRead(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                compiling=event.data.compiling_tids,
                count=event.data.count,
                where=self._shared.one(event.where),
            )
        )

    def dense(self, event: schema.DenseAttention) -> None:
        """Dense attention ran."""
        data = event.data
        if data.kind == "fallback":
            self._timeline.dense.append(
                DenseCall(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    shape=data.shape,
                    dtype=data.dtype,
                    device=data.device,
                    scores_bytes=data.scores_bytes,
                    count=data.count,
                    where=self._shared.one(event.where),
                )
            )

    def error(self, event: schema.ThreadError) -> None:
        """An exception ended a thread, a future's call or the program."""
        data = event.data
        if data.chain:
            self._timeline.errors.append(
                ErrorSeen(
                    tid=event.tid,
                    t=event.t_ns,
                    seq=event.seq,
                    via=data.via,
                    chain=tuple(map(self._link, data.chain)),
                    future=data.future,
                    current_device=data.current_device,
                    devices=data.devices,
                )
            )

    def _link(self, link: ErrorLink) -> ErrorLink:
        message = cut(link.message)
        frames = self._shared.one(link.frames)
        if message is link.message and frames is link.frames:
            return link
        return msgspec.structs.replace(link, message=message, frames=frames)
