"""Of what kind a record is: records of one kind are alike for all causes, but for their time.

A kind begins with the thread; what follows is in the order of its weight for findings.
"""

from collections.abc import Hashable

from harness.timeline.model import (
    BackwardCompile,
    BlockMask,
    CompilingRead,
    DenseCall,
    EagerCall,
    ErrorSeen,
    FlaggedCall,
    FxTrace,
    LockWait,
    StanceCall,
    StanceSet,
    Uncovered,
)

Kind = tuple[Hashable, ...]


def flagged(call: FlaggedCall) -> Kind:
    """Of calls that found the FX flag set."""
    code = call.code.id if call.code else None
    return call.tid, call.tid in call.tracing, bool(call.tracing), call.nested, code


def eager(call: EagerCall) -> Kind:
    """Of calls that ran eager."""
    return call.tid, call.by not in {None, call.tid}, call.route, call.by, call.code.id


def error(error: ErrorSeen, read: set[int]) -> Kind:
    """Of errors; ``read``: the futures that somebody asked."""
    link = error.error
    return error.tid, error.via, error.future in read, link.type, link.message, len(error.chain)


def backward(backward: BackwardCompile) -> Kind:
    """Of backward compiles."""
    forward = backward.forward
    made = (forward.tid, forward.code.id) if forward else None
    return backward.tid, forward is None, backward.tid in backward.behalf, backward.behalf, made


def call(call: Uncovered, warmup_end: int | None) -> Kind:
    """Of uncovered calls."""
    compile_ = call.compile
    done: Hashable = None
    if compile_ is not None:
        guards = frozenset(guard for reason in compile_.reasons for guard in reason.guards)
        warm = warmup_end is None or compile_.t0 < warmup_end
        done = (compile_.ok, compile_.limit_hit, guards, warm, compile_.entry is None)
    waited, led = call.wait is not None, call.leader is not None
    return call.tid, call.no_entry, waited, led, id(call.context), done


def under_stance(call: StanceCall) -> Kind:
    """Of calls under a stance."""
    return call.tid, call.by not in {None, call.tid}, call.stance, call.by, call.code.id


def stance(stance: StanceSet) -> Kind:
    """Of stances that threads set."""
    return stance.tid, stance.stance


def dense(call: DenseCall) -> Kind:
    """Of dense calls."""
    return (call.tid,)


def trace(trace: FxTrace) -> Kind:
    """Of FX traces."""
    return trace.tid, trace.in_compile, trace.tracer


def wait(wait: LockWait) -> Kind:
    """Of waits for a lock."""
    return wait.tid, wait.lock


def mask(mask: BlockMask) -> Kind:
    """Of block masks."""
    return mask.tid, mask.error[:40], bool(mask.compiling)


def compiling_read(read: CompilingRead) -> Kind:
    """Of reads of whether torch compiles."""
    return read.tid, read.compiling
