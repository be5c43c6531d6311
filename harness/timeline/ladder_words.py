"""The ladder of a thread: what it did, in order, in words."""

from harness.events import schema
from harness.timeline.contexts import describe
from harness.timeline.ladder import Rung
from harness.timeline.model import Thread

_INSIDE: dict[type, str] = {
    schema.LockWait: "waits for the compile lock",
    schema.Compile: "compiles",
    schema.FxTrace: "FX trace",
    schema.BackwardCompile: "compiles the backward",
    schema.BlockMask: "builds a block mask",
    schema.Autotune: "tunes a kernel",
}


def started(thread: Thread, creator: str, event: schema.ThreadStart) -> None:
    """Note who started the thread."""
    thread.ladder.add(Rung(event.t_ns, "started", f"by {creator}", event.seq))


def note(thread: Thread, event: schema.Event) -> None:
    """Add the event to its thread's ladder, if a reader wants to see it there."""
    what = _INSIDE.get(type(event))
    if what is not None and event.edge == "exit":
        _close(thread, what, event)
    elif what is not None:
        detail = _detail(event)
        # Traces inside a compile are part of it: one line for the compile is enough.
        if not (isinstance(event, schema.FxTrace) and event.data.in_compile):
            thread.ladder.add(Rung(event.t_ns, what, detail, event.seq, span=event.edge == "enter"))
    else:
        said = _instant(event)
        if said is not None:
            thread.ladder.add(Rung(event.t_ns, said[0], said[1], event.seq))


def _close(thread: Thread, what: str, event: schema.Event) -> None:
    for rungs in (reversed(thread.ladder.tail), reversed(thread.ladder.head)):
        for rung in rungs:
            if rung.what == what and rung.span and rung.t1 is None:
                rung.t1 = event.t_ns
                result = _result(event)
                rung.detail = f"{rung.detail}: {result}" if result else rung.detail
                return


def _detail(event: schema.Event) -> str:
    match event:
        case schema.Compile():
            return f"`{event.data.code.name}`" + (
                f" [{event.compile_id}]" if event.compile_id else ""
            )
        case schema.BackwardCompile():
            return f"of [{event.compile_id}]" if event.compile_id else ""
        case schema.FxTrace():
            return event.data.tracer
        case schema.Autotune():
            return f"`{event.data.name}`"
        case schema.BlockMask() if event.data.compiling_tids:
            return f"while {len(event.data.compiling_tids)} other thread(s) compile"
        case _:
            return ""


def _result(event: schema.Event) -> str:
    match event:
        case schema.Compile():
            if event.data.limit_hit:
                return "recompile limit hit"
            if not event.data.ok:
                return event.data.error or "failed"
            return event.data.reasons[0].strip() if event.data.reasons else ""
        case schema.BackwardCompile() | schema.BlockMask() | schema.Autotune():
            return event.data.error
        case _:
            return ""


def _instant(event: schema.Event) -> tuple[str, str] | None:
    said: tuple[str, str] | None = None
    match event:
        case schema.Wrapper():
            said = _call(event)
        case schema.GuardMiss():
            said = "misses the cache", _missed(event)
        case schema.Eager():
            said = "ran eager", f"`{event.data.code.name}`: {event.data.route.replace('_', ' ')}"
        case schema.Stance():
            skipping = ", guards skipped" if event.data.skip_guards else ""
            said = "sets the stance", f"{event.data.stance}{skipping}"
        case schema.DenseAttention() if event.data.kind == "fallback":
            said = "dense attention", f"{list(event.data.shape)} {event.data.dtype}"
        case schema.ThreadError() if event.data.chain:
            error = event.data.chain[0]
            said = "error", f"{error.type}: {error.message}"
        case schema.Backward() if event.data.count == 1:
            said = "first backward", ""
        case schema.Phase() if event.edge != "exit":
            said = "phase", event.data.name
        case schema.ThreadEnd():
            said = "ends", ""
        case schema.End():
            said = "the program's exit handlers run", ""
    return said


def _call(event: schema.Wrapper) -> tuple[str, str] | None:
    name = f"`{event.data.code.name}`" if event.data.code else ""
    if event.data.fx_flag:
        ends = {"raise": "raises", "eager": "runs eager"}.get(event.data.nested, "")
        return "finds the FX flag set", f"{name} {ends}".strip()
    if event.data.first:
        return "first compiled call", f"{name} {describe(event.data.context)}".strip()
    return None


def _missed(event: schema.GuardMiss) -> str:
    name = f"`{event.data.code.name}`" if event.data.code else "unknown code"
    return name if event.data.entries is None else f"{name}, {event.data.entries} entries"
