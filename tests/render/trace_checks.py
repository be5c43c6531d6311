"""Reads a Chrome trace as ui.perfetto.dev does and refuses what would not be shown as meant.

Perfetto sorts events by time, those of one time staying in the file's order; on a thread each ``E``
closes the slice that was opened last, and an ``X`` must end before the slice that it lies in. An
arrow binds to the slices that are open at its ends, or else it is dropped.
"""

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Slice:
    name: str
    cat: str
    began: float
    ended: float | None = None
    args: dict = field(default_factory=dict)
    depth: int = 0


@dataclass
class Trace:
    """What a person sees: slices and instants by thread, arrows, counters, names."""

    slices: dict = field(default_factory=lambda: defaultdict(list))
    instants: dict = field(default_factory=lambda: defaultdict(list))
    asides: dict = field(default_factory=lambda: defaultdict(list))
    counters: dict = field(default_factory=lambda: defaultdict(list))
    names: dict = field(default_factory=dict)
    processes: dict = field(default_factory=dict)
    arrows: list = field(default_factory=list)
    other: dict = field(default_factory=dict)

    def all(self, cat):
        return [each for track in self.slices.values() for each in track if each.cat == cat]


def load(path: Path) -> Trace:
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    assert set(document) == {"displayTimeUnit", "traceEvents", "otherData"}
    events = document["traceEvents"]
    trace = Trace(other=document["otherData"])
    for event in events:
        assert event["ts"] >= 0, event
        assert {type(event["pid"]), type(event["tid"])} == {int}
        if event["ph"] == "M":
            _metadata(trace, event)
    stacks: dict = defaultdict(list)
    ends: dict = defaultdict(dict)
    for event in sorted((e for e in events if e["ph"] != "M"), key=lambda e: e["ts"]):
        _show(trace, event, stacks[event["pid"], event["tid"]], ends)
    left_open = [each for stack in stacks.values() for each in stack if each.ended is None]
    assert not left_open, f"never closed: {left_open}"
    for number, arrow in ends.items():
        assert set(arrow) == {"s", "f"}, f"arrow {number} has {set(arrow)}"
        trace.arrows.append((arrow["s"], arrow["f"]))
    for track in trace.asides.values():
        assert all(a.ended <= b.began for a, b in itertools.pairwise(track)), track
        assert all(each.ended is not None for each in track)
    unnamed = {*trace.slices, *trace.instants} - trace.names.keys()
    assert not unnamed
    return trace


def _refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def _metadata(trace, event):
    match event["name"]:
        case "thread_name":
            trace.names[event["pid"], event["tid"]] = event["args"]["name"]
        case "process_name":
            trace.processes[event["pid"]] = event["args"]["name"]
        case other:
            assert other == "process_sort_index"


def _show(trace, event, stack, ends):
    key, ts = (event["pid"], event["tid"]), event["ts"]
    while stack and stack[-1].ended is not None and stack[-1].ended <= ts:
        stack.pop()
    match event["ph"]:
        case "B" | "X":
            assert event["name"]
            new = Slice(event["name"], event["cat"], ts, None, event.get("args", {}), len(stack))
            if event["ph"] == "X":
                new.ended = ts + event["dur"]
                inside = [each for each in stack if each.ended is not None]
                assert all(new.ended <= each.ended for each in inside), (new, stack)
            elif stack:
                assert stack[-1].ended is None, f"{new} begins in {stack[-1]}"
            stack.append(new)
            trace.slices[key].append(new)
        case "E":
            assert stack, f"nothing to close: {event}"
            closed = stack.pop()
            assert closed.ended is None, f"{event} would cut {closed}"
            assert closed.cat == event["cat"], f"{event} closes {closed}"
            closed.ended = ts
            closed.args |= event.get("args", {})
        case "i":
            assert event["s"] == "t"
            trace.instants[key].append((ts, event["name"], event["cat"], event.get("args", {})))
        case "s" | "f":
            assert stack, f"no slice for the arrow {event}"
            assert event["ph"] not in ends[event["id"]]
            assert event["ph"] == "s" or (event["bp"] == "e" and "s" in ends[event["id"]])
            ends[event["id"]][event["ph"]] = (key, stack[-1])
        case "b":
            new = Slice(event["name"], event["cat"], ts, None, event["args"])
            trace.asides[event["pid"], event["cat"], event["id2"]["local"]].append(new)
        case "e":
            (last,) = [
                each
                for each in trace.asides[event["pid"], event["cat"], event["id2"]["local"]]
                if each.ended is None
            ]
            last.ended = ts
        case "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
            trace.counters[event["pid"], event["name"]].append((ts, event["args"]))
        case other:
            raise AssertionError(f"unknown phase {other}")
