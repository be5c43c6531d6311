"""Keeps the threads of a process: which event is whose, who started whom, who has ended."""

import operator
from collections import Counter
from collections.abc import Sequence

import msgspec

from harness.events import schema
from harness.timeline import ladder_words, lives
from harness.timeline.ladder import RUNGS, Ladder
from harness.timeline.model import Thread
from harness.timeline.narrow import StepSeen
from harness.timeline.timeline import Timeline

MAX_THREADS = 1 << 16
"""So many threads are followed; what further ones do is counted and left out."""
_TID = operator.attrgetter("tid")
_MANY = 256
_FEW_RUNGS = 12
"""How long the ladders of a process's later threads are, where it has many."""
_CUT_STACK = 24
"""A recorded stack of this many frames may have lost its outermost ones."""


class Threads:
    """Feeds a timeline's threads."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lives = lives.Lives()

    def meet(self, event: schema.Event) -> tuple[schema.Event, Thread | None]:
        """The event under its thread's number, and its thread; None if there are too many."""
        event = self._lives.renumber(event)
        if isinstance(event, schema.ThreadStart):
            return self._by_creator(event)
        thread = self._timeline.threads.get(event.tid)
        if thread is not None and thread.ended:
            self._next_life(thread)
            event = self._lives.renumber(event)
            thread = self._timeline.threads.get(event.tid)
        if thread is None:
            thread = self._new(event.tid, event.thread, event.t_ns)
        if thread is not None:
            self._seen(thread, event)
        return event, thread

    def steps(self, steps: Sequence[StepSeen]) -> None:
        """Count steps. They come after everything else, so they tell no thread's end."""
        counts = Counter(map(_TID, steps))
        shared = {tid for tid in counts if self._lives.shared(tid)}
        for tid, last in {step.tid: step for step in steps}.items():
            if tid not in shared:
                self._step(tid, counts[tid], last)
        if shared:
            for step in steps:
                if step.tid in shared:
                    self._step(self._lives.number(step.tid, step.seq), 1, step)

    def _step(self, number: int, count: int, last: StepSeen) -> None:
        thread = self._timeline.threads.get(number)
        if thread is None:
            thread = self._new(number, f"thread-{lives.native(number)}", last.t_ns)
        if thread is None:
            return
        thread.steps += count
        if last.t_ns > thread.t1:
            thread.t1, thread.last_seq = last.t_ns, last.seq

    def started(self, event: schema.ThreadStart) -> None:
        """Note who started a thread. Its own first events may have come before."""
        data = event.data
        number = self._lives.number(data.child_tid, event.seq)
        thread = self._timeline.threads.get(number)
        if thread is not None and thread.creation_seq:
            # Started twice: the first one has ended, though nothing said so.
            self._next_life(thread)
            number = self._lives.number(data.child_tid, event.seq)
            thread = self._timeline.threads.get(number)
        thread = thread or self._new(number, data.name, event.t_ns)
        if thread is None:
            return
        thread.creator, thread.creation, thread.creation_seq = event.tid, event.where, event.seq
        thread.ident = data.child_ident or thread.ident
        thread.autograd = False
        ladder_words.started(thread, self._timeline.name(event.tid), event)

    def _by_creator(self, event: schema.ThreadStart) -> tuple[schema.Event, Thread | None]:
        """The thread that started another one, which can have ended when that was written down."""
        threads = self._timeline.threads
        number = event.tid
        while lives.life(number) > 1 and (
            (later := threads.get(number)) is None or later.t0 > event.t_ns
        ):
            number = lives.previous(number)
        if number != event.tid:
            event = msgspec.structs.replace(event, tid=number)
        thread = threads.get(number) or self._new(number, event.thread, event.t_ns)
        if thread is not None and event.t_ns >= thread.t1:
            self._seen(thread, event)
        return event, thread

    def _new(self, number: int, name: str, t: int) -> Thread | None:
        threads = self._timeline.threads
        if len(threads) >= MAX_THREADS:
            self._timeline.folded.events += 1
            return None
        ladder = Ladder(RUNGS if len(threads) < _MANY else _FEW_RUNGS)
        native = lives.native(number)
        thread = Thread(number, name, native, lives.life(number), t0=t, ladder=ladder)
        threads[number] = thread
        return thread

    def _next_life(self, thread: Thread) -> None:
        self._lives.begin(thread.native, max(thread.last_seq, thread.creation_seq) + 1)

    def _seen(self, thread: Thread, event: schema.Event) -> None:
        thread.t0 = thread.t0 or event.t_ns
        thread.name = event.thread
        if event.t_ns < thread.t1:
            self._timeline.clock_back += 1
        else:
            thread.t1 = event.t_ns
        thread.last_seq = event.seq
        thread.ident = event.ident or thread.ident
        if thread.creator is None and event.where and thread.tid != self._timeline.main_tid:
            _tell_autograd(thread, event)


def _tell_autograd(thread: Thread, event: schema.BaseEvent) -> None:
    """Tell autograd's threads by how their stack begins: in a library, and not in ``threading``."""
    outermost = event.where[-1]
    python = outermost.user or outermost.file.endswith("threading.py")
    if not python and len(event.where) < _CUT_STACK:
        thread.autograd = True
