"""What the events of CUDA graphs and of forks say."""

from typing import Literal

import msgspec

from harness.events.values import Int


class CudaGraphData(msgspec.Struct, frozen=True, kw_only=True):
    """A capture of a CUDA graph, from enter to exit, or a replay of one.

    Of replays those are recorded that another thread than the one before makes (the first, and
    powers of two for each graph and thread).

    Attributes:
        graph: number of the graph, from 1, in order of its first appearance in this process.
        what: ``capture`` or ``replay``.
        mode: of a capture: ``capture_error_mode``; empty: not known.
        trees: inductor's CUDA graph trees did it, and not the program by itself.
        captured_tid: of a replay: the thread that captured the graph; None: not seen.
        before_tid: of a replay: the thread that replayed it before; None: the first replay.
        again: of a replay: the thread had replayed the graph before ``before_tid`` did.
        other_stream: of a replay: on another stream than the one before.
        inside_tids: of a replay: threads that are inside a replay of the same graph just now.
        error: of a capture's exit: what ended it.
    """

    graph: Int
    what: Literal["capture", "replay"]
    mode: str = ""
    trees: bool = False
    captured_tid: Int | None = None
    before_tid: Int | None = None
    again: bool = False
    other_stream: bool = False
    inside_tids: tuple[Int, ...] = ()
    error: str = ""
    count: Int = 1


class ForkData(msgspec.Struct, frozen=True, kw_only=True):
    """This process was forked while another thread of its parent held dynamo's compile lock.

    The forked process has the forking thread alone; ``where`` is where that called fork.

    Attributes:
        parent: the parent's process id.
        by: native id of the forking thread, in the parent.
        owner: native id of the thread that held the lock, in the parent.
        owner_name: its name.
        compiling: whether that thread was inside a compile.
    """

    parent: Int
    by: Int
    owner: Int
    owner_name: str = ""
    compiling: bool = False
