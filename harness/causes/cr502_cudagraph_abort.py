"""CR502: the process died in native code of CUDA graphs."""

from collections.abc import Sequence

from harness.causes import crashed, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.crashed import Crash
from harness.causes.endings import CRASHES, crash_signal, last_active, last_words, stacks_kept
from harness.events.values import Frame
from harness.statements import Remedy, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR502",
    title="cudagraph-abort",
    what=(
        "The process dies of SIGABRT (`terminate called after throwing an instance of "
        "'c10::Error'`) or SIGSEGV while several threads call code compiled with "
        '`mode="reduce-overhead"`, though it was warmed.'
    ),
    why=(
        "A compiled function's CUDA graphs, their memory pool and the tree that orders them belong "
        "to the thread that recorded them. Up to torch 2.12 a call from another thread goes to the "
        "same tree; two threads in it at once leave the pool's books wrong, and the check that "
        "notices stands where C++ cannot raise."
    ),
    evidence=(
        "The signal, and the Python frames of the thread that crashed, in the files of CUDA "
        "graphs; or that C++ told of a `c10::Error` and several threads captured or replayed "
        "graphs."
    ),
    remedy=Remedy(
        text=(
            "Make all calls that use CUDA graphs in one thread, use torch 2.13 or newer, or "
            "compile without CUDA graphs."
        ),
        snippet='step = torch.compile(step, mode="max-autotune-no-cudagraphs")',
    ),
    versions="up to 2.12",
    upstream=("pytorch/pytorch#123177", "pytorch/pytorch#184357"),
    may_follow=("CR1", "CR201", "CR202", "CR203", "CR204", "CR205", "CR206"),
)

_FILES = ("torch/_inductor/cudagraph_trees.py", "torch/cuda/graphs.py")
_THROWN = "c10::Error"
_TOLD = Statement("C++ ended it over a `c10::Error` that nothing caught.", "observed")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """A crash in CUDA graphs."""
    number = crash_signal(timeline)
    ended = timeline.ended
    if number is None or ended is None or any(found.ends for found in earlier):
        return Outcome()
    crash = crashed.crashed(timeline)
    frame = _graph_frame(crash)
    users = _users(timeline)
    thrown = _THROWN in ended.stderr_tail
    if frame is None and not (thrown and len(users) > 1):
        return Outcome()
    name = CRASHES[number]
    own = ended.signal is not None
    how = "ended the process" if own else "ended it, to judge by its exit code"
    statements = [
        Statement(f"{name} {how}.", "observed" if own else "inferred"),
        *([crashed.statement(timeline, crash)] if crash else []),
        *([_in_graphs(frame)] if frame else []),
        *([_TOLD] if thrown else []),
        *_used(timeline, users),
        *last_words(timeline, last_active(timeline)),
        *stacks_kept(ended),
    ]
    who = f", which {len(users)} threads used" if len(users) > 1 else ""
    open_ = timeline.open_compiles()
    tids = [*([crash.tid] if crash and crash.tid is not None else []), *users]
    return Outcome(
        found=[
            Found(
                code="CR502",
                statements=tuple(statements),
                headline=f"The process died of {name} in CUDA graphs{who}.",
                because=frozenset(seq for c in open_ for seq in c.seqs),
                ends=True,
                threads=words.refs(timeline, tids),
                stacks=(crashed.stack(timeline, crash),) if crash else (),
            )
        ]
    )


def _graph_frame(crash: Crash | None) -> Frame | None:
    """The innermost frame in the files of CUDA graphs, on the stack of the thread that crashed."""
    frames = crash.frames if crash else ()
    return next((f for f in frames if f.file.replace("\\", "/").endswith(_FILES)), None)


def _users(timeline: Timeline) -> list[int]:
    """Threads that captured or replayed graphs, as far as replays are recorded."""
    captures = (capture.tid for capture in timeline.graph_captures)
    replays = (tid for r in timeline.graph_replays for tid in (r.captured, r.before, r.tid))
    return [tid for tid in dict.fromkeys((*captures, *replays)) if tid is not None]


def _in_graphs(frame: Frame) -> Statement:
    text = (
        f"It was inside `{frame.function}` ({frame.file}:{frame.line}), which serves CUDA graphs."
    )
    return Statement(text, "observed")


def _used(timeline: Timeline, users: Sequence[int]) -> list[Statement]:
    if not users:
        return []
    seqs = words.seqs(
        *(capture.seqs for capture in timeline.graph_captures),
        (replay.seq for replay in timeline.graph_replays),
    )
    text = f"CUDA graphs were captured or replayed by {words.object_(timeline, users)}."
    return [Statement(text, "observed", seqs)]
