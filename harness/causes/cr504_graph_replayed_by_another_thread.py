"""CR504: several threads replay one CUDA graph, whose inputs and outputs are the same memory."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Note, Remedy, SharedState, Statement
from harness.timeline.kernels import GraphReplay
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR504",
    title="cudagraph-replay-from-another-thread",
    what=(
        "Results are wrong now and then, without an error: noise in generated samples, losses that "
        "jump, values of another request's. It began with a second thread."
    ),
    why=(
        "A CUDA graph reads its inputs from and writes its outputs to the memory that it was "
        "captured with. A thread that replays it while another one has not yet read its results "
        "overwrites them. Up to torch 2.12 all threads share the graphs that "
        '`mode="reduce-overhead"` records for a function; from 2.13 on each thread has its own.'
    ),
    evidence=(
        "Threads that replay one graph in turn: by inductor's graph trees, on different streams, "
        "or at the same moment. That results were overwritten is inferred. Threads that take turns "
        "on one stream with a graph of the program's own may well hold a lock: a note."
    ),
    remedy=Remedy(
        text=(
            "Let one thread replay a graph and hand out copies of its results, give each thread a "
            "graph of its own, or use torch 2.13 or newer."
        ),
        snippet=(
            "gpu = concurrent.futures.ThreadPoolExecutor(max_workers=1)\n"
            "result = gpu.submit(lambda: step(batch).clone()).result()"
        ),
    ),
    versions="all for graphs of the program's own; up to 2.12 for `torch.compile`",
    upstream=("pytorch/pytorch#123177", "pytorch/pytorch#184357"),
    needs=("cuda_graphs",),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root by itself
    """Graphs that threads replayed in turn."""
    turns = [replay for replay in timeline.graph_replays if replay.again and _other(replay)]
    graphs = {replay.graph for replay in turns}
    shared = [replay for replay in timeline.graph_replays if replay.graph in graphs]
    racing = {
        replay.graph for replay in shared if replay.trees or replay.other_stream or replay.inside
    }
    outcome = Outcome()
    if racing:
        outcome.found.append(_finding(timeline, [r for r in shared if r.graph in racing]))
    if calm := [replay for replay in shared if replay.graph not in racing]:
        outcome.notes.append(_note(timeline, calm))
    return outcome


def _other(replay: GraphReplay) -> bool:
    return replay.before is not None and replay.before != replay.tid


def _users(replays: Sequence[GraphReplay]) -> list[int]:
    tids = (tid for replay in replays for tid in (replay.before, replay.tid))
    return [tid for tid in dict.fromkeys(tids) if tid is not None]


def _finding(timeline: Timeline, replays: Sequence[GraphReplay]) -> Found:
    users = _users(replays)
    graphs = list(dict.fromkeys(replay.graph for replay in replays))
    trees = any(replay.trees for replay in replays)
    whose = "that inductor's graph trees had recorded" if trees else "of the program's own"
    seqs = words.seqs(replay.seq for replay in replays)
    statements = [
        Statement(
            f"{words.begin(words.object_(timeline, users))} replayed "
            f"{words.count(len(graphs), 'CUDA graph')} {whose} in turn.",
            "observed",
            seqs,
        )
    ]
    statements += _captured_by(timeline, replays)
    if any(replay.other_stream for replay in replays):
        moved = words.seqs(r.seq for r in replays if r.other_stream)
        text = "They did so on different streams, which wait for nobody."
        statements.append(Statement(text, "observed", moved))
    if any(replay.inside for replay in replays):
        both = words.seqs(r.seq for r in replays if r.inside)
        text = "One of them was inside a replay of the graph when another began one."
        statements.append(Statement(text, "observed", both))
    text = (
        "A graph has one set of inputs and outputs: what a thread had not yet read when another "
        "one replayed it is the other's now. Whether any result was read too late is not recorded."
    )
    statements.append(Statement(text, "inferred", seqs))
    first = {replay.tid: replay for replay in reversed(replays)}
    return Found(
        code="CR504",
        statements=tuple(statements),
        headline=(
            f"{words.begin(words.object_(timeline, users))} replayed the same CUDA graph in turn: "
            "its inputs and outputs are the same memory for all of them, so one thread's results "
            "can be another's, without an error."
        ),
        explains=frozenset(replay.seq for replay in replays),
        threads=words.refs(timeline, users),
        stacks=tuple(
            words.stack(timeline, tid, "replayed the graph", replay.where, replay.seq)
            for tid, replay in list(first.items())[:2]
        ),
        shared_state=SharedState(
            name="the memory that a CUDA graph was captured with",
            writer=words.names(timeline, users),
            reader=words.names(timeline, users),
        ),
    )


def _captured_by(timeline: Timeline, replays: Sequence[GraphReplay]) -> list[Statement]:
    graphs = {replay.graph for replay in replays}
    captures = [c for c in timeline.graph_captures if c.graph in graphs]
    tids = dict.fromkeys(
        [*(c.tid for c in captures), *(r.captured for r in replays if r.captured is not None)]
    )
    if not tids:
        return []
    text = f"Captured by {words.object_(timeline, tids)}."
    return [Statement(text, "observed", words.seqs((r.seq for r in replays), limit=4))]


def _note(timeline: Timeline, replays: Sequence[GraphReplay]) -> Note:
    users = _users(replays)
    text = (
        f"{words.begin(words.object_(timeline, users))} replayed a CUDA graph of the program's own "
        "in turn, on one stream. Its results are the same memory for all of them: right if each "
        "copies its own under the lock under which it replays."
    )
    seqs = words.seqs(replay.seq for replay in replays)
    return Note(text=text, code="CR504", pid=timeline.pid, evidence=seqs)
