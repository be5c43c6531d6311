"""Controllers with real threads, and what they record."""

import json
import threading
from pathlib import Path

from harness.child.schedule.controller import Controller
from harness.child.schedule.order import Hold

# Nobody waits so long but where something hangs.
LIMIT_S = 60.0


def controller(recorder, *texts, patience_s=1000.0):
    return Controller(recorder, [Hold.parse(text) for text in texts], patience_s=patience_s)


def events(recorder, point):
    with (Path(recorder.folder) / "events.jsonl").open(encoding="utf-8") as file:
        return [e for e in map(json.loads, file) if e["point"] == point]


def last(recorder):
    return events(recorder, "schedule")[-1]["data"]


def start(scheduler, *bodies):
    """Start threads as a program would, t1 first."""
    threads = []
    for number, body in enumerate(bodies, 1):
        thread = threading.Thread(target=body, name=f"thread-{number}", daemon=True)
        scheduler.number_thread(thread)
        threads.append(thread)
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
