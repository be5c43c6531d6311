"""All schedules of a few holds over the points that a recorded run reached."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

from harness.child.schedule.order import COMPILER
from harness.schedule.arrivals import Arrival, Places, after_warmup, collapse
from harness.schedule.plan import MAX_HOLDS, MAX_THREADS, MIN_HOLDS, Plan, Schedule

#: At these a thread reads the state that others have set inside of the compiler.
READERS = frozenset({"wrapper", "block_mask", "dense_attention", "guard_miss"})


class Enumerate:
    """Schedules in order of promise.

    Those of fewer holds come first; among those of as many, first the ones in which one thread is
    inside a compile or a trace while another comes to a call, a block mask or dense attention, then
    those that only order the two, then the others. Two schedules that make the same threads wait
    for the same arrivals are one: a thread's arrivals in a row count as its first and last, and
    threads that reached the same points in the same order stand for each other.
    """

    name = "enumerate"

    def __init__(self, found: Iterable[Arrival], *, max_holds: int = 4, bound: int = 1000) -> None:
        """Make a strategy.

        Args:
            found: arrivals of a recorded run.
            max_holds: holds of the longest schedules, 2 to 6.
            bound: so many schedules at most.
        """
        every = list(found)
        self._places = Places(every)
        self._max_holds = min(max(max_holds, MIN_HOLDS), MAX_HOLDS)
        self._bound = bound
        self._alphabet = _alphabet(every)
        self._twins = _twins(self._alphabet)

    def describe(self) -> str:
        """Say over what."""
        threads = {arrival.thread for arrival in self._alphabet}
        return (
            f"all schedules of up to {self._max_holds} holds over {len(self._alphabet)} places "
            f"that {len(threads)} threads reached, the first {self._bound} of them"
        )

    def schedules(self) -> Iterator[Schedule]:
        """Yield plans, at most ``bound`` of them."""
        return islice(self._plans(), self._bound)

    def _plans(self) -> Iterator[Plan]:
        seen: set[tuple[str, ...]] = set()
        for size in range(MIN_HOLDS, self._max_holds + 1):
            later: tuple[list[Plan], list[Plan]] = ([], [])
            for picked in self._sequences(size):
                promise = _promise(picked)
                if promise and len(later[promise - 1]) >= self._bound:
                    continue
                plan = Plan(self._places.holds(picked))
                key = self._key(plan)
                if key in seen:
                    continue
                seen.add(key)
                if promise:
                    later[promise - 1].append(plan)
                else:
                    yield plan
            for plans in later:
                yield from plans

    def _sequences(self, size: int) -> Iterator[list[Arrival]]:
        """Every sequence of ``size`` arrivals of which none could be left out."""
        order = {arrival: number for number, arrival in enumerate(self._alphabet)}

        def extend(picked: list[Arrival], last: dict[str, int]) -> Iterator[list[Arrival]]:
            if len(picked) == size:
                if len(collapse(picked)) == size:
                    yield list(picked)
                return
            for arrival in self._alphabet:
                if order[arrival] <= last.get(arrival.thread, -1):
                    continue  # a thread's own order cannot be changed
                if not _may_follow(picked, arrival) or (
                    arrival.thread not in last and len(last) == MAX_THREADS
                ):
                    continue
                before = last.get(arrival.thread)
                last[arrival.thread] = order[arrival]
                picked.append(arrival)
                yield from extend(picked, last)
                picked.pop()
                if before is None:
                    del last[arrival.thread]
                else:
                    last[arrival.thread] = before

        return extend([], {})

    def _key(self, plan: Plan) -> tuple[str, ...]:
        """The same text for plans that differ only in which of equal threads does what."""
        names: dict[str, str] = {}
        count: dict[str, int] = {}
        for thread in plan.threads:
            kind = self._twins[thread]
            number = count[kind] = count.get(kind, 0) + 1
            names[thread] = f"{kind}/{number}"
        return tuple(
            f"{names[hold.thread]} {hold.point} {hold.edge} {hold.nth}" for hold in plan.holds
        )


def _alphabet(found: Sequence[Arrival]) -> list[Arrival]:
    """Each thread's first arrival after warm-up at each place, in order of time."""
    first: dict[tuple[str, str, str], Arrival] = {}
    for arrival in sorted(after_warmup(found), key=lambda a: (a.t, a.seq)):
        first.setdefault((arrival.thread, *arrival.place), arrival)
    return list(first.values())


def _twins(alphabet: Sequence[Arrival]) -> dict[str, str]:
    """For each thread the first thread that reached the same places in the same order."""
    places: dict[str, list[tuple[str, str]]] = {}
    for arrival in alphabet:
        places.setdefault(arrival.thread, []).append(arrival.place)
    firsts: dict[tuple[tuple[str, str], ...], str] = {}
    twins: dict[str, str] = {}
    for thread, own in places.items():
        # What a letter stands for is decided by who comes first: it is like no other thread.
        alike = (*own, (thread, "")) if thread == "main" or len(thread) == 1 else tuple(own)
        twins[thread] = firsts.setdefault(alike, thread)
    return twins


def _may_follow(picked: Sequence[Arrival], arrival: Arrival) -> bool:
    """Whether an arrival after these can still matter (see ``collapse``)."""
    tail = [a.thread == arrival.thread for a in picked[-2:]]
    if tail == [True, True]:
        return False  # the third in a row
    return not (tail and tail[-1] and len(picked) == 1)  # the second in a row at the beginning


def _promise(picked: Sequence[Arrival]) -> int:
    """0 for the most promising schedules, then 1, then 2."""
    if _reads_inside(picked):
        return 0
    return 1 if _reads_near(picked) else 2


def _reads_inside(picked: Sequence[Arrival]) -> bool:
    """A thread enters a writer, another reads, and only then does the first one leave."""
    for start, arrival in enumerate(picked):
        if arrival.point not in COMPILER or arrival.edge != "enter":
            continue
        for stop in range(start + 2, len(picked)):
            end = picked[stop]
            if (end.thread, *end.place) == (arrival.thread, arrival.point, "exit"):
                between = picked[start + 1 : stop]
                if any(a.thread != arrival.thread and a.point in READERS for a in between):
                    return True
    return False


def _reads_near(picked: Sequence[Arrival]) -> bool:
    """A thread reads right after another one came to a writer."""
    return any(
        one.thread != two.thread and one.point in COMPILER and two.point in READERS
        for one, two in pairwise(picked)
    )
