"""Joins the events of one uncovered call: the miss, the wait for the lock and the compile."""

from harness.events import schema
from harness.events.values import Code
from harness.timeline.model import CodeHistory, Compile, LockWait, Sighting, Uncovered
from harness.timeline.reasons import parse_all
from harness.timeline.timeline import Timeline

ALWAYS_RECORDED = 8
"""So many misses of one kind are recorded one by one; later ones are thinned out."""


class Calls:
    """Follows each thread from a call of compiled code to the compile that it led to."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._missed: dict[int, Uncovered] = {}
        self._waits: dict[int, list[LockWait]] = {}
        self._waited: dict[int, LockWait] = {}
        self._entered: dict[int, schema.Wrapper] = {}
        self._compiling: dict[int, list[Compile]] = {}

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
        threads = self._timeline.threads
        if not threads[event.tid].autograd:
            return event.tid
        callers = [thread.tid for thread in threads.values() if thread.backwards]
        return callers[0] if len(callers) == 1 else event.tid

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
            context=event.data.context,
            where=event.where,
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
                wait.t1, wait.seqs = event.t_ns, (*wait.seqs, event.seq)
                self._waited[event.tid] = wait
            return
        wait = LockWait(
            tid=event.tid,
            t0=event.t_ns,
            t1=None,
            seqs=(event.seq,),
            lock=event.data.lock,
            owner=event.data.owner_tid,
        )
        waits.append(wait)
        self._timeline.lock_waits.append(wait)

    def dynamo_compile(self, event: schema.Compile) -> None:
        """A dynamo compile began or ended."""
        self._first_call(event, event.data.code)
        self._sight(self.history(event.data.code), event)
        if event.edge == "exit":
            self._compile_ended(event)
        else:
            self._compile_began(event)

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
            context=data.context,
            inputs=data.inputs,
            entries=data.entries,
            limit=data.limit,
            where=event.where,
        )
        history.compiles.append(compile_)
        call = self._call_of(event, history)
        call.compile, call.seqs = compile_, (*call.seqs, event.seq)
        call.context = data.context or call.context
        self._compiling.setdefault(event.tid, []).append(compile_)
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
                context=event.data.context,
                no_entry=self._found_no_entry(history, owner),
                where=event.where,
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
        earlier = [c for c in history.compiles[:-1] if c.tid == tid]
        missed = history.sightings[tid].misses
        return timeline.live("guards") and not earlier and missed < ALWAYS_RECORDED

    def _compile_ended(self, event: schema.Compile) -> None:
        data = event.data
        running = self._compiling.get(event.tid, [])
        compile_ = next(
            (c for c in reversed(running) if c.compile_id == event.compile_id),
            running[-1] if running else None,
        )
        if compile_ is None:
            compile_ = self._compile_began(event)
        else:
            compile_.seqs = (*compile_.seqs, event.seq)
        self._compiling[event.tid].remove(compile_)
        compile_.t1 = event.t_ns
        compile_.compile_id = event.compile_id or compile_.compile_id
        compile_.context = compile_.context or data.context
        compile_.ok, compile_.error, compile_.limit_hit = data.ok, data.error, data.limit_hit
        compile_.reasons, compile_.entry = parse_all(data.reasons), data.entry
        compile_.limit = compile_.limit if data.limit is None else data.limit
        self._remember_id(compile_)
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


def _may_be(entered: schema.Wrapper, code: Code) -> bool:
    """Whether an entry to ``compile_wrapper`` can be the call that compiles ``code`` now."""
    if entered.data.code is None:
        return entered.data.first
    return entered.data.code.id == code.id
