"""From a finding to a plan that forces it: holds where its evidence lies, in order of time."""

from collections.abc import Iterable

from harness.diagnosis.report import Finding
from harness.schedule.arrivals import Arrival, Places, arrivals
from harness.schedule.plan import MAX_THREADS, Plan
from harness.timeline.recording import Recording


def forcing_plans(
    findings: Iterable[Finding], recording: Recording, own: Plan | None = None
) -> list[Plan]:
    """Plans that may force what was found, the tightest first, without repeats.

    A thread that was inside something (a compile, a trace) when another one's evidence was recorded
    has to stay inside for it, so the end of what it was inside of is made to wait as well: for the
    other thread to have come by, and, in the tightest plans, to have gone on from there.

    Args:
        findings: of the recording, roots first.
        recording: the run.
        own: the plan under which it was made; its holds come first, and it is the last resort.

    Raises:
        OSError: the recording cannot be read.
    """
    found = arrivals(recording, implied=True)
    places = Places(found)
    by_seq = {arrival.seq: arrival for arrival in found if not arrival.implied}
    held = [arrival for arrival in found if arrival.held]
    plans: list[Plan] = []
    for finding in findings:
        evidence = list(dict.fromkeys(by_seq[seq] for seq in finding.evidence if seq in by_seq))
        inside = _ends(places, evidence)
        closed = list(dict.fromkeys([*evidence, *inside]))
        left = [*closed, *(_leaving(places, evidence) if inside else ())]
        first = _first_of_each(evidence)
        gone = _going_on(places, evidence, inside)
        on = [*closed, *gone] if gone else []
        for picked in (left, on, {*closed, *held}, closed, evidence, first):
            plan = places.plan(picked)
            if plan is not None:
                plans.append(plan)
    if own is not None and own.holds:
        plans.append(own)
    return list(dict.fromkeys(plans))


def _ends(places: Places, evidence: list[Arrival]) -> list[Arrival]:
    """The ends of what threads were inside of when other threads' evidence was recorded."""
    ends: list[Arrival] = []
    for arrival in evidence:
        end = places.span_end(arrival) if arrival.edge == "enter" else None
        if end is None or end.implied:
            continue
        others = (a for a in evidence if a.thread != arrival.thread)
        if any(arrival.t <= other.t <= end.t for other in others):
            ends.append(end)
    return list(dict.fromkeys(ends))


def _going_on(places: Places, evidence: list[Arrival], ends: list[Arrival]) -> list[Arrival]:
    """Where threads came to next that read something while another was inside.

    A thread may read what it found between two points: it has done so for certain at the next one.
    """
    found: list[Arrival] = []
    for end in ends:
        for arrival in evidence:
            if arrival.thread != end.thread and arrival.edge == "enter" and arrival.t <= end.t:
                later = (a for a in places.of(arrival.thread) if a.t > arrival.t and not a.implied)
                following = next(later, None)
                if following is not None and following.t <= end.t:
                    found.append(following)
    return list(dict.fromkeys(found))


def _leaving(places: Places, evidence: list[Arrival]) -> list[Arrival]:
    """The ends of what was recorded as instants."""
    ends = (places.span_end(arrival) for arrival in evidence if arrival.edge == "enter")
    return [end for end in ends if end is not None and end.implied]


def _first_of_each(evidence: list[Arrival]) -> list[Arrival]:
    """The first arrival of each thread: what is left of evidence that is too much for a plan."""
    first: dict[str, Arrival] = {}
    for arrival in sorted(evidence, key=lambda a: (a.t, a.seq)):
        first.setdefault(arrival.thread, arrival)
    return list(first.values())[:MAX_THREADS]
