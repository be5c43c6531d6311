"""Turns what texts say into a run folder: the events that a watched program would have written.

Times are made up and tell only the order. A compile is taken to last until its process is known to
compile again, since dynamo holds one lock around every compile; where torch says that an entry
passed when it was checked again, its call had begun before that entry was there.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness import __version__
from harness.child.privacy import mask
from harness.events import program, schema
from harness.events.calls import CompileData, GuardMissData, LockWaitData, WrapperData
from harness.events.ended import write_ended
from harness.events.files import EVENTS, writing_whole
from harness.events.run import Run, write_run
from harness.events.values import CacheEntry, Code, ErrorLink
from harness.logs import ends, versions
from harness.logs.compiles import FIRST, Attempt, attempts_of
from harness.logs.facts import (
    Compiled,
    Dump,
    Fact,
    Function,
    GraphBreak,
    Guards,
    LimitHit,
    Place,
    Recompile,
    Said,
    Signalled,
    Traceback,
    Version,
)
from harness.logs.keeping import Process

E = TypeVar("E", bound=schema.BaseEvent)
STEP_NS = 1_000_000
FIRST_PID = 1
_MESSAGES: dict[type[Fact], str] = {
    Traceback: "tracebacks",
    Recompile: "recompiles",
    LimitHit: "recompile limits",
    Compiled: "compiles",
    Guards: "guards",
    GraphBreak: "graph breaks",
    Said: "messages",
    Dump: "dumps of stacks",
    Signalled: "signals",
    Version: "versions",
}


def write_recording(folder: Path, processes: list[Process], run: Run) -> None:
    """Write the run folder of what the texts say.

    Args:
        folder: an existing folder.
        processes: what the texts say of each process.
        run: what is written down of the command.

    Raises:
        OSError: it cannot be written.
    """
    pids = _pids(processes)
    with writing_whole(folder / EVENTS, 0o600) as file:
        for process, pid in zip(processes, pids, strict=True):
            for event in _Events(process, pid).all():
                file.write(mask(msgspec.json.encode(event).decode()) + "\n")
    ended = ends.ended_of(processes[0], pids[0]) if processes else None
    if ended is not None:
        write_ended(folder, ended)
    write_run(folder, run)


def _pids(processes: list[Process]) -> list[int]:
    """Each process's id, the ones of which it is not known numbered from 1."""
    taken = {process.pid for process in processes}
    free = (number for number in itertools.count(FIRST_PID) if number not in taken)
    return [process.pid or next(free) for process in processes]


class _Events:
    """The events of one process."""

    def __init__(self, process: Process, pid: int) -> None:
        self._process = process
        self._pid = pid
        self._seq = 0
        self._error = 0
        self._codes: dict[Function, Code] = {}
        self._threads: dict[str, int] = {}
        self._known = ends.thread_ids(process)
        self._attempts = attempts_of(process)
        self._open: tuple[Attempt, int] | None = None

    def all(self) -> Iterator[schema.Event]:
        """Every event, in order."""
        yield self._header()
        for fact in self._process.facts:
            yield from self._of(fact)
        yield from self._close()
        for kind, number in self._process.left_out.items():
            data = program.LeftOutData(of=_MESSAGES[kind], count=number)
            yield self._event(schema.LeftOut, self._pid, None, data=data)

    def _of(self, fact: Fact) -> Iterator[schema.Event]:
        for attempt in self._attempts.at(fact):
            yield from self._begin(attempt)
        match fact:
            case Traceback():
                yield from self._raised(fact)
            case Said():
                yield self._said(fact.place, fact.text, fact.thread)
            case LimitHit():
                name = f" for {fact.function.name}" if fact.function else ""
                text = f"torch._dynamo hit config.recompile_limit ({fact.limit}){name}"
                if fact.reason:
                    text += f"; last reason: {fact.reason}"
                yield self._said(fact.place, text, fact.thread)
            case Dump():
                yield from self._dump(fact)
            case GraphBreak():
                yield self._said(
                    fact.place, f"Graph break in user code at {fact.where}: {fact.reason}", ""
                )
            case _:
                return

    def _header(self) -> schema.Header:
        data = program.HeaderData(
            schema=schema.SCHEMA_VERSION,
            harness=__version__,
            python="",
            torch=versions.torch_of(self._process),
            triton="",
            cuda="",
            platform="",
            cpus=0,
            argv=(),
            started_unix=0.0,
            compile_detail=True,
            made_from="text",
        )
        place = self._process.facts[0].place if self._process.facts else None
        return self._event(schema.Header, self._pid, place, data=data)

    def _begin(self, attempt: Attempt) -> Iterator[schema.Event]:
        yield from self._close()
        code = self._code(attempt.function)
        tid = self._tid(attempt.thread)
        if not attempt.early:
            yield from self._entering(attempt, code, tid)
        data = CompileData(code=code, context=attempt.context)
        yield self._event(
            schema.Compile, tid, attempt.place, edge="enter", data=data,
            compile_id=attempt.number or None, where=attempt.where,
        )  # fmt: skip
        self._open = (attempt, tid)

    def _entering(self, attempt: Attempt, code: Code, tid: int) -> Iterator[schema.Event]:
        """The call that led to a compile: it missed, or found nothing."""
        if attempt.found_nothing:
            call = WrapperData(code=code, first=True, context=attempt.context)
            yield self._event(schema.Wrapper, tid, attempt.place, data=call)
        else:
            miss = GuardMissData(code=code, context=attempt.context)
            yield self._event(schema.GuardMiss, tid, attempt.place, data=miss)

    def _close(self) -> Iterator[schema.Event]:
        if self._open is None:
            return
        (attempt, tid), self._open = self._open, None
        for early in self._attempts.began_before_end_of(attempt):
            yield from self._entering(early, self._code(early.function), self._tid(early.thread))
        if not attempt.ended:
            return
        ok = not attempt.error
        entry = None
        if ok:
            guards = attempt.guards
            entry = CacheEntry(
                compile_id=attempt.number or None,
                digest=guards.digest if guards else "",
                guards=guards.lines if guards else (),
            )
        data = CompileData(
            code=self._code(attempt.function),
            ok=ok,
            reasons=attempt.reasons,
            error=attempt.error,
            entry=entry,
        )
        yield self._event(
            schema.Compile, tid, attempt.place, edge="exit", data=data,
            compile_id=attempt.number or None,
        )  # fmt: skip

    def _raised(self, fact: Traceback) -> Iterator[schema.Event]:
        chain = []
        for raised in fact.chain:
            self._error += 1
            chain.append(
                ErrorLink(
                    id=self._error,
                    type=raised.type,
                    message=raised.message,
                    frames=raised.frames,
                    relation=raised.relation,  # type: ignore[arg-type]
                )
            )
        main = fact.thread in {"", "MainThread"}
        data = program.ThreadErrorData(via="main" if main else "thread", chain=tuple(chain))
        tid = self._pid if main else self._tid(fact.thread)
        yield self._event(schema.ThreadError, tid, fact.place, data=data)

    def _said(self, place: Place, text: str, thread: str) -> schema.Said:
        tid = self._tid(thread) if thread else self._pid
        return self._event(schema.Said, tid, place, data=program.SaidData(text=text))

    def _dump(self, fact: Dump) -> Iterator[schema.Event]:
        """Of a dump, the compile under way and who waits for its lock."""
        held = ends.compile_lock(fact)
        if held is None:
            return
        holder, function, waiters = held
        yield from self._close()
        owner = self._tid(holder.name, holder.tid)
        data = CompileData(code=self._code(function))
        yield self._event(
            schema.Compile, owner, holder.place, edge="enter", data=data, where=holder.frames
        )
        for waiter in waiters:
            wait = LockWaitData(lock="compile_lock", owner_tid=owner)
            tid = self._tid(waiter.name, waiter.tid)
            yield self._event(schema.LockWait, tid, waiter.place, edge="enter", data=wait)

    def _code(self, function: Function) -> Code:
        code = self._codes.get(function)
        if code is None:
            code = self._codes[function] = Code(
                id=len(self._codes) + 1,
                name=function.name,
                file=function.file,
                line=function.line,
                internal=versions.is_internal(function),
            )
        return code

    def _tid(self, name: str, tid: int = 0) -> int:
        """The number of a thread of that name; the same name is the same thread."""
        if name in {"MainThread", FIRST}:
            return self._pid
        known = self._threads.get(name)
        if known is None:
            known = tid or self._known.get(name) or self._pid + 1_000_000 + len(self._threads)
            self._threads[name] = known
        return known

    def _name(self, tid: int) -> str:
        if tid == self._pid:
            return "MainThread" if self._attempts.main_is_named else FIRST
        return next((name for name, number in self._threads.items() if number == tid), "")

    def _event(self, kind: Callable[..., E], tid: int, place: Place | None, **rest: Any) -> E:  # noqa: ANN401
        self._seq += 1
        return kind(
            t_ns=self._seq * STEP_NS,
            seq=self._seq,
            pid=self._pid,
            tid=tid,
            thread=self._name(tid),
            source=str(place) if place else "",
            **rest,
        )
