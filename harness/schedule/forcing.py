"""From a finding to a plan that forces it: holds where its evidence lies, in order of time."""

from collections.abc import Iterable, Iterator

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
    other thread to have come by, and, in the tightest plans, to have gone on from there. Evidence
    that was recorded where no thread can be held, a flag that was read, say, lies between two
    arrivals of its thread: both are made to happen while the other thread is inside.

    Args:
        findings: of the recording, roots first.
        recording: the run.
        own: the plan under which it was made; its holds come first, and it is the last resort.

    Raises:
        OSError: the recording cannot be read.
    """
    findings = list(findings)
    seqs = [seq for finding in findings for seq in finding.evidence]
    seen = arrivals(recording, implied=True, also=seqs)
    found = [arrival for arrival in seen if arrival.can_be_held]
    between = {arrival.seq: arrival for arrival in seen if not arrival.can_be_held}
    places = Places(found)
    by_seq = {arrival.seq: arrival for arrival in found if not arrival.implied}
    held = [arrival for arrival in found if arrival.held]
    plans: list[Plan] = []
    for finding in findings:
        evidence = list(dict.fromkeys(by_seq[seq] for seq in finding.evidence if seq in by_seq))
        for seq in finding.evidence:
            if seq in between:
                plans += _meanwhile(places, evidence, between[seq])
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


def _meanwhile(places: Places, evidence: list[Arrival], seen: Arrival) -> Iterator[Plan]:
    """Plans in which a thread goes past ``seen``, where it cannot be held, with another inside."""
    own = [arrival for arrival in places.of(seen.thread) if not arrival.implied]
    before = next((a for a in reversed(own) if a.t <= seen.t), None)
    after = next((a for a in own if a.t > seen.t), None)
    if before is None or after is None:
        return
    for enter in evidence:
        leave = places.span_end(enter) if enter.edge == "enter" else None
        if enter.thread == seen.thread or leave is None or not enter.t <= seen.t <= leave.t:
            continue
        holds = places.holds([enter, before, after, leave])
        # Whoever is inside may have the compile lock: the other one must not need it.
        if not leave.implied and not any(hold.is_behind_lock for hold in holds[1:3]):
            yield Plan(holds)


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
