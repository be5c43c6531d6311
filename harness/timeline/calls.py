"""Joins the events of one uncovered call: the miss, the wait for the lock and the compile."""

import msgspec

from harness.events import schema
from harness.events.values import CacheEntry, Code
from harness.timeline.history import CodeHistory, Sighting
from harness.timeline.model import Compile, LockWait, Thread, Uncovered
from harness.timeline.reasons import parse_all
from harness.timeline.repeats import find_leader
from harness.timeline.sharing import Shared, cut
from harness.timeline.spans import end
from harness.timeline.timeline import Timeline

ALWAYS_RECORDED = 8
"""So many misses of one kind are recorded one by one; later ones are thinned out."""
_MAX_DEEP = 64
"""So many waits or compiles may be under way in one thread; of more, the outermost are given up."""


class Calls:
    """Follows each thread from a call of compiled code to the compile that it led to."""

    def __init__(self, timeline: Timeline, shared: Shared) -> None:
        self._timeline = timeline
        self._shared = shared
        self._callers: dict[int, None] = {}
        self._missed: dict[int, Uncovered] = {}
        self._waits: dict[int, list[LockWait]] = {}
        self._waited: dict[int, LockWait] = {}
        self._entered: dict[int, schema.Wrapper] = {}
        self._compiling: dict[int, list[Compile]] = {}
        # The call that led to each compile under way.
        self._callings: dict[int, Uncovered] = {}

    def pending(self) -> set[int]:
        """Identities of the calls, waits and compiles that are still going on."""
        found = {id(call) for call in self._missed.values()}
        found |= {id(wait) for wait in self._waited.values()}
        found |= {id(wait) for waits in self._waits.values() for wait in waits}
        for compiles in self._compiling.values():
            found |= {id(compile_) for compile_ in compiles}
        return found

    def forget(self, tids: set[int]) -> None:
        """Drop what is kept of threads that have ended."""
        for by_thread in (self._missed, self._waits, self._waited, self._entered, self._compiling):
            for tid in tids & by_thread.keys():
                del by_thread[tid]

    def finish(self) -> None:
        """Judge the compiles that never ended by what is known of them."""
        for call in self._callings.values():
            call.leader = find_leader(self.history(call.code), call)

    def backward(self, thread: Thread) -> None:
        """Note that a thread called backward."""
        if len(self._callers) < 2:  # that there are several is all that is asked
            self._callers[thread.tid] = None

    def history(self, code: Code) -> CodeHistory:
        """The history of a code object, made when it is first met."""
        history = self._timeline.codes.get(code.id)
        if history is None:
            history = self._timeline.codes[code.id] = CodeHistory(code)
        return history

    def _tid(self, event: schema.BaseEvent) -> int:
        """The thread that an event is put down to.

        Autograd's thread works for whoever called backward; while only one thread has done so, that
        is known. Where several have, the event stays autograd's.
        """
        if self._timeline.threads[event.tid].autograd and len(self._callers) == 1:
            return next(iter(self._callers))
        return event.tid

    def _sight(self, history: CodeHistory, event: schema.BaseEvent) -> None:
        tid = self._tid(event)
        if self._timeline.threads[event.tid].autograd:
            history.autograd.add(event.tid)
        seen = history.sightings.get(tid)
        if seen is None:
            seen = history.sightings[tid] = Sighting(event.t_ns, event.t_ns, event.seq)
        seen.t1 = max(seen.t1, event.t_ns)

    def wrapper(self, event: schema.Wrapper) -> None:
        """A call of compiled code; of use later only if it turns out to compile."""
        self._entered[event.tid] = event
        if event.data.code is not None:
            self._sight(self.history(event.data.code), event)

    def guard_miss(self, event: schema.GuardMiss) -> None:
        """A call that missed every entry."""
        self._first_call(event, event.data.code)
        code = event.data.code
        if code is None:
            return
        history = self.history(code)
        self._sight(history, event)
        tid = self._tid(event)
        history.sightings[tid].misses = event.data.count
        call = Uncovered(
            code=code,
            tid=tid,
            t=event.t_ns,
            seqs=(event.seq,),
            context=self._shared.context(event.data.context),
            where=self._shared.one(event.where),
            count=event.data.count,
        )
        history.uncovered.append(call)
        self._missed[event.tid] = call

    def lock_wait(self, event: schema.LockWait) -> None:
        """A wait for the compile lock began or ended."""
        waits = self._waits.setdefault(event.tid, [])
        if event.edge == "exit":
            if waits:
                wait = waits.pop()
                end(wait, event)
                self._waited[event.tid] = wait
            return
        wait = LockWait(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            lock=event.data.lock,
            owner=event.data.owner_tid,
            where=self._shared.one(event.where),
        )
        waits.append(wait)
        del waits[:-_MAX_DEEP]
        self._timeline.lock_waits.append(wait)

    def dynamo_compile(self, event: schema.Compile) -> None:
        """A dynamo compile began or ended."""
        if event.data.before:
            self._entry_before(event)
            return
        self._first_call(event, event.data.code)
        self._sight(self.history(event.data.code), event)
        if event.edge == "exit":
            self._compile_ended(event)
        else:
            self._compile_began(event)

    def _entry_before(self, event: schema.Compile) -> None:
        """An entry that was there when the watch began: no call of the thread's was seen."""
        data = event.data
        history = self.history(data.code)
        compile_ = Compile(
            tid=event.tid,
            on=event.tid,
            t0=event.t_ns,
            t1=event.t_ns,
            seqs=(event.seq,),
            code=data.code,
            compile_id=event.compile_id,
            context=self._shared.context(data.context),
            ok=data.ok,
            entry=without_raw(data.entry),
            before=True,
        )
        history.compiles.append(compile_)
        history.makers.add(event.tid)
        self._remember_id(compile_)

    def _compile_began(self, event: schema.Compile) -> Compile:
        data = event.data
        history = self.history(data.code)
        compile_ = Compile(
            tid=self._tid(event),
            on=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            code=data.code,
            compile_id=event.compile_id,
            context=self._shared.context(data.context),
            inputs=self._shared.one(data.inputs),
            entries=data.entries,
            limit=data.limit,
            owner=data.owner,
            dynamic=data.dynamic,
            where=self._shared.one(event.where),
        )
        history.compiles.append(compile_)
        call = self._call_of(event, history)
        call.compile, call.seqs = compile_, (*call.seqs, event.seq)
        call.context = compile_.context or call.context
        self._callings[id(compile_)] = call
        history.makers.add(compile_.tid)
        running = self._compiling.setdefault(event.tid, [])
        running.append(compile_)
        for given_up in running[:-_MAX_DEEP]:
            self._callings.pop(id(given_up), None)
        del running[:-_MAX_DEEP]
        self._remember_id(compile_)
        return compile_

    def _call_of(self, event: schema.Compile, history: CodeHistory) -> Uncovered:
        """The uncovered call that led to this compile, from what its thread did just before."""
        tid, owner, code = event.tid, self._tid(event), event.data.code
        entered, wait = self._entered.pop(tid, None), self._waited.pop(tid, None)
        call = self._missed.pop(tid, None)
        if call is None or call.code.id != code.id:
            call = Uncovered(
                code=code,
                tid=owner,
                t=event.t_ns,
                seqs=(),
                context=self._shared.context(event.data.context),
                no_entry=self._found_no_entry(history, owner),
                where=self._shared.one(event.where),
            )
            history.uncovered.append(call)
            if entered is not None and _may_be(entered, code):
                call.t, call.seqs = entered.t_ns, (entered.seq,)
        if wait is not None:
            call.wait = wait
            call.t, call.seqs = min(call.t, wait.t0), (*call.seqs, *wait.seqs)
        seen = history.sightings[owner]
        seen.t0 = min(seen.t0, call.t)
        return call

    def _found_no_entry(self, history: CodeHistory, tid: int) -> bool:
        # Without a miss before it a compile means that there was nothing to check against, unless
        # misses go unseen or are so many by now that this one was not recorded. Where the beginning
        # of the call is seen as well, that says it better: the entries may have been reset since.
        timeline = self._timeline
        if timeline.live("wrapper") and timeline.live("lock"):
            return False
        missed = history.sightings[tid].misses
        again = tid in history.makers
        return timeline.live("guards") and not again and missed < ALWAYS_RECORDED

    def _compile_ended(self, event: schema.Compile) -> None:
        data = event.data
        running = self._compiling.get(event.tid, [])
        compile_ = next(
            (c for c in reversed(running) if c.compile_id == event.compile_id),
            running[-1] if running else None,
        )
        if compile_ is None:
            compile_ = self._compile_began(event)
            end(compile_, event)
            compile_.seqs = (event.seq,)
        else:
            end(compile_, event)
        self._compiling[event.tid] = [c for c in running if c is not compile_]
        compile_.compile_id = event.compile_id or compile_.compile_id
        compile_.context = compile_.context or self._shared.context(data.context)
        compile_.ok, compile_.error, compile_.limit_hit = data.ok, cut(data.error), data.limit_hit
        compile_.reasons = parse_all(data.reasons, data.other_backends)
        compile_.entry = without_raw(data.entry)
        compile_.limit = compile_.limit if data.limit is None else data.limit
        self._remember_id(compile_)
        call = self._callings.pop(id(compile_), None)
        if call is not None:
            call.leader = find_leader(self.history(compile_.code), call)
        # What was entered or waited for inside the compile belongs to it, not to a later call.
        self._entered.pop(event.tid, None)
        self._waited.pop(event.tid, None)

    def _remember_id(self, compile_: Compile) -> None:
        if compile_.compile_id is not None:
            self._timeline.forwards[compile_.compile_id] = compile_

    def _first_call(self, event: schema.BaseEvent, code: Code | None) -> None:
        thread = self._timeline.threads[event.tid]
        if thread.first_call is None and code is not None and not code.internal:
            thread.first_call = event.t_ns


def without_raw(entry: CacheEntry | None) -> CacheEntry | None:
    """A cache entry without its global state, which would keep a whole chunk of its file alive."""
    if entry is None or entry.global_state is None:
        return entry
    return msgspec.structs.replace(entry, global_state=None)


def _may_be(entered: schema.Wrapper, code: Code) -> bool:
    """Whether an entry to ``compile_wrapper`` can be the call that compiles ``code`` now."""
    if entered.data.code is None:
        return entered.data.first
    return entered.data.code.id == code.id
