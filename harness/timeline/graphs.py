"""CUDA graphs and forks: what threads share that is bound to one of them."""

from harness.events import schema
from harness.timeline.kernels import GraphCapture, GraphReplay
from harness.timeline.model import BackwardFailed, Forked
from harness.timeline.sharing import Shared, cut
from harness.timeline.spans import OpenSpans
from harness.timeline.timeline import Timeline

_MAX_RECORDS = 4096
"""So many of each are kept, the first ones; the recorder has thinned them out already."""


class Graphs:
    """Feeds these events into a timeline."""

    def __init__(self, timeline: Timeline, shared: Shared) -> None:
        self._timeline = timeline
        self._shared = shared
        self._open = OpenSpans()

    def cuda_graph(self, event: schema.CudaGraph) -> None:
        """A capture began or ended, or a graph was replayed."""
        if event.data.what == "replay":
            self._replay(event)
        elif event.edge == "exit":
            closed = self._open.close(GraphCapture, event)
            if closed is not None:
                closed.error = cut(event.data.error)
        elif len(self._timeline.graph_captures) < _MAX_RECORDS:
            capture = GraphCapture(
                tid=event.tid,
                t0=event.t_ns,
                t1=None,
                seqs=(event.seq,),
                graph=event.data.graph,
                mode=event.data.mode,
                trees=event.data.trees,
                where=self._shared.one(event.where),
            )
            self._timeline.graph_captures.append(self._open.opened(capture, event))

    def _replay(self, event: schema.CudaGraph) -> None:
        data = event.data
        if len(self._timeline.graph_replays) >= _MAX_RECORDS:
            return
        self._timeline.graph_replays.append(
            GraphReplay(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                graph=data.graph,
                trees=data.trees,
                captured=data.captured_tid,
                before=data.before_tid,
                again=data.again,
                other_stream=data.other_stream,
                inside=data.inside_tids,
                count=data.count,
                where=self._shared.one(event.where),
            )
        )

    def fork(self, event: schema.Fork) -> None:
        """The process was forked while another thread held the compile lock."""
        data = event.data
        self._timeline.forked = self._timeline.forked or Forked(
            tid=event.tid,
            t=event.t_ns,
            seq=event.seq,
            parent=data.parent,
            by=data.by,
            owner=data.owner,
            owner_name=data.owner_name,
            compiling=data.compiling,
            where=self._shared.one(event.where),
        )

    def backward_failed(self, event: schema.Backward) -> None:
        """A backward call failed."""
        if len(self._timeline.backwards_failed) < _MAX_RECORDS:
            failed = BackwardFailed(
                tid=event.tid,
                t=event.t_ns,
                seq=event.seq,
                error=cut(event.data.error),
                others=event.data.in_backward_tids,
                where=self._shared.one(event.where),
            )
            self._timeline.backwards_failed.append(failed)
