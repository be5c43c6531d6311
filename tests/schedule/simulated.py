"""A simulated process: programs are lists of points and lock operations, run one step at a time.

Each simulated thread is a real one, so that the real ``Controller`` runs unchanged, but only the
thread that has the baton moves, and a seeded choice says who gets it. Time stands still except
where all threads wait.
"""

import itertools
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

from harness.child.schedule import controller as module
from harness.child.schedule.controller import _BRACKETS, NEVER_HELD, Controller
from harness.child.schedule.order import Hold

LOCK, UNLOCK = "lock", "unlock"
HIT = (("wrapper", "enter"), ("wrapper", "exit"))
TRACE = (("fx_trace", "enter"), ("fx_trace", "exit"))
MASK = (("block_mask", "enter"), ("block_mask", "exit"))
STEP = (("step", "enter"),)
COMPILE = (
    ("wrapper", "enter"),
    ("guard_miss", "enter"),
    ("lock_wait", "enter"),
    LOCK,
    ("lock_wait", "exit"),
    ("dynamo_compile", "enter"),
    ("fx_trace", "enter"),
    ("fx_trace", "exit"),
    ("dynamo_compile", "exit"),
    UNLOCK,
    ("wrapper", "exit"),
)
SEGMENTS = (HIT, TRACE, MASK, STEP, COMPILE)


def labels(count):
    return [f"t{number}" for number in range(1, count + 1)]


@dataclass
class Machine:
    """The state of a simulated run; ``choose(n)`` gives a number below n."""

    programs: list
    choose: object
    now: float = 0.0
    pc: list = field(default_factory=list)
    owner: int | None = None
    waiting: set = field(default_factory=set)
    current: int = -1
    emitted: list = field(default_factory=list)
    proofs: list = field(default_factory=list)
    moments: list = field(default_factory=list)

    def __post_init__(self):
        self.pc = [0] * len(self.programs)

    def ended(self, number):
        return self.pc[number] >= len(self.programs[number])

    def stuck_at_lock(self, number):
        program = self.programs[number]
        return (
            not self.ended(number)
            and program[self.pc[number]] == LOCK
            and self.owner not in {None, number}
            and number not in self.waiting
        )


class _Condition:
    """Takes the place of the controller's condition: a wait hands the baton on."""

    def __init__(self, run):
        self.run = run

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def acquire(self, timeout=None):
        return True

    def release(self):
        return None

    def notify_all(self):
        return None

    def wait(self, timeout):
        self.run.hand_on(waits=True)


class _Workers:
    """Threads that are used again for one simulated run after the other."""

    def __init__(self, count):
        self.wake = [threading.Semaphore(0) for _ in range(count)]
        self.job = [None] * count
        self.back = threading.Semaphore(0)
        for number in range(count):
            threading.Thread(target=self._work, args=(number,), daemon=True).start()

    def _work(self, number):
        while True:
            self.wake[number].acquire()
            self.job[number]()

    def step(self, number):
        self.wake[number].release()
        self.back.acquire()


WORKERS = _Workers(4)


class Run:
    """One simulated run under a controller."""

    def __init__(self, programs, holds, choose, patience_s=1.0, apart=False):
        self.machine = machine = Machine(programs, choose)
        self.names = labels(len(programs))
        self.locals = [SimpleNamespace(tid=100 + n, scratch={}) for n in range(len(programs))]
        run = self

        class Recorder:
            lost = 0

            def __init__(self):
                self.at_end = []

            @property
            def local(self):
                return run.locals[machine.current]

            def emit(self, point, data):
                machine.emitted.append((point, dict(data)))
                if point == "hold":
                    machine.moments.append(data["hold"])
                if point == "schedule" and data["state"] == "impossible":
                    machine.proofs.append(run.is_stuck(data))
                return 1

        self.recorder = Recorder()
        self.controller = Controller(self.recorder, holds, patience_s=patience_s, apart=apart)
        self.controller._condition = _Condition(self)
        self.controller._labels = SimpleNamespace(
            of_caller=lambda tid: self.names[tid - 100],
            has_ended=lambda tid: machine.ended(tid - 100),
        )
        self.steps = 0

    def insides(self):
        """For each thread how many things it is inside of."""
        counts = []
        for program, pc in zip(self.machine.programs, self.machine.pc, strict=True):
            done = [op for op in program[:pc] if op not in {LOCK, UNLOCK} and op[0] in _BRACKETS]
            counts.append(sum(1 if edge == "enter" else -1 for _, edge in done))
        return counts

    def is_stuck(self, data):
        """Whether the thread of the next hold waits for a lock whose owner waits at a hold."""
        machine = self.machine
        part = data["next"].partition(":")[0]
        number = data["threads"][part] - 100
        # Whoever finds out is waiting as well.
        return machine.stuck_at_lock(number) and machine.owner in {
            *machine.waiting,
            machine.current,
        }

    def go(self):
        """Run to the end of all threads; returns the last that the schedule said."""
        machine = self.machine
        real = module.time, module.helpers_cpu_s, module.thread_cpu_s
        module.time = SimpleNamespace(monotonic=lambda: machine.now, process_time=lambda: 0.0)
        module.helpers_cpu_s = lambda: None
        module.thread_cpu_s = lambda tid: None
        try:
            for number in range(len(machine.programs)):
                WORKERS.job[number] = lambda number=number: self._thread(number)
            while not all(map(machine.ended, range(len(machine.programs)))):
                self._next()
            self.controller.conclude()
        finally:
            module.time, module.helpers_cpu_s, module.thread_cpu_s = real
        return [data for point, data in machine.emitted if point == "schedule"][-1]

    def hand_on(self, *, waits):
        number = self.machine.current
        if waits:
            self.machine.waiting.add(number)
        WORKERS.back.release()
        WORKERS.wake[number].acquire()
        self.machine.current = number
        self.machine.waiting.discard(number)

    def _next(self):
        machine = self.machine
        self.steps += 1
        assert self.steps < 20_000, "the simulated threads make no progress"
        alive = [n for n in range(len(machine.programs)) if not machine.ended(n)]
        able = [n for n in alive if not machine.stuck_at_lock(n)]
        free = [n for n in able if n not in machine.waiting]
        assert able, "deadlock"
        self.controller.blocked = {
            100 + n: self._owner_now for n in alive if machine.stuck_at_lock(n)
        }
        if not free:
            machine.now += 0.02
        # A waiting thread looks around now and then, also while others run.
        number = able[machine.choose(len(able))] if free else able[self.steps % len(able)]
        machine.current = number
        machine.moments.append(self.insides())
        WORKERS.step(number)

    def _owner_now(self):
        return None if self.machine.owner is None else 100 + self.machine.owner

    def _thread(self, number):
        """The simulated thread: each operation is a step of its own."""
        machine, program = self.machine, self.machine.programs[number]
        machine.current = number
        while True:
            operation = program[machine.pc[number]]
            if operation == LOCK:
                assert machine.owner is None  # it got the baton, so it is not stuck
                machine.owner = number
            elif operation == UNLOCK:
                machine.owner = None
            else:
                self.controller.reach(*operation)
            machine.pc[number] += 1
            if machine.ended(number):
                WORKERS.back.release()
                return
            self.hand_on(waits=False)


def place(program, hold, start):
    """Index of the operation that a hold means, counted from ``start``; None if there is none."""
    count = 0
    for index in range(start, len(program)):
        if program[index] == (hold.point, hold.edge):
            count += 1
            if count == hold.nth:
                return index
    return None


def explore(programs, holds):
    """Whether a plan can be met, and whether it is met however the threads happen to run.

    An exhaustive search over all orders of steps that shares nothing with the controller: a hold is
    an operation that may not be made before its turn. Holds name ``t1``, ``t2`` ... .
    """
    places = places_of(programs, holds)
    if places is None:
        return False, False
    programs, places = _without_idle_steps(programs, places)
    first = (tuple([0] * len(programs)), 0, tuple([None] * len(programs)))
    seen, todo = {first}, [first]
    can, must = False, True
    while todo:
        state = todo.pop()
        if state[1] == len(holds):
            can = True
            continue
        following = list(_steps(programs, places, state))
        must = must and bool(following)
        todo += [one for one in following if one not in seen]
        seen.update(following)
    return can, must


def _without_idle_steps(programs, places):
    """Leave out operations at which nothing can happen."""
    kept_programs, kept_places = [], []
    for program, own in zip(programs, places, strict=True):
        kept = [
            index
            for index, operation in enumerate(program)
            if operation in {LOCK, UNLOCK}
            or index in own
            or (index - 1 in own and program[index - 1][0] in NEVER_HELD)
        ]
        kept_programs.append([program[index] for index in kept])
        kept_places.append({at: own[index] for at, index in enumerate(kept) if index in own})
    return kept_programs, kept_places


def places_of(programs, holds):
    """For each thread the hold at each of its operations; None if a hold has none."""
    places = [{} for _ in programs]
    reached = [0] * len(programs)
    for number, hold in enumerate(holds):
        thread = int(hold.thread[1:]) - 1
        index = place(programs[thread], hold, reached[thread])
        if index is None:
            return None
        places[thread][index] = number
        reached[thread] = index + 1
    return places


def keeps_lock_for_another(programs, holds):
    """Whether a thread has to keep the lock while another one comes to a hold."""
    for program, own in zip(programs, places_of(programs, holds), strict=True):
        inside = [
            (program[:index].count(LOCK), number)
            for index, number in sorted(own.items())
            if program[:index].count(LOCK) > program[:index].count(UNLOCK)
        ]
        for (section, one), (again, two) in itertools.pairwise(inside):
            if section == again and two > one + 1:
                return True
    return False


def _owner(programs, pcs):
    for number, (program, pc) in enumerate(zip(programs, pcs, strict=True)):
        done = program[:pc]
        if done.count(LOCK) > done.count(UNLOCK):
            return number
    return None


def _steps(programs, places, state):
    pcs, turn, owed = state
    owner = _owner(programs, pcs)
    for number, program in enumerate(programs):
        pc = pcs[number]
        if pc == len(program) or (program[pc] == LOCK and owner is not None):
            continue
        is_point = program[pc] not in {LOCK, UNLOCK}
        passed, debt = turn, owed[number]
        if debt is not None and is_point:
            if debt != passed:
                continue
            passed, debt = passed + 1, None
        hold = places[number].get(pc)
        if hold is not None and hold == passed:
            passed += 1
        elif hold is not None and program[pc][0] in NEVER_HELD:
            debt = hold
        elif hold is not None:
            continue
        yield (
            (*pcs[:number], pc + 1, *pcs[number + 1 :]),
            passed,
            (*owed[:number], debt, *owed[number + 1 :]),
        )


def pick_holds(programs, picks):
    """Holds for ``(thread, fraction)`` picks: each thread's in its own order, ``nth`` counted."""
    chosen = {}
    for thread, index in picks:
        points = [i for i, op in enumerate(programs[thread]) if op not in {LOCK, UNLOCK}]
        chosen.setdefault(thread, set()).add(points[index % len(points)])
    queues = {thread: sorted(indexes) for thread, indexes in chosen.items()}
    holds, last = [], dict.fromkeys(queues, 0)
    for thread, _ in picks:
        if not queues[thread]:
            continue
        index = queues[thread].pop(0)
        program = programs[thread]
        nth = program[last[thread] : index + 1].count(program[index])
        holds.append(Hold(f"t{thread + 1}", *program[index], nth))
        last[thread] = index + 1
    return holds


def program_of(segments):
    return list(itertools.chain.from_iterable(segments))
