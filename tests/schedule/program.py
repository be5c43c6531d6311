"""A simulated program with a known bug, in the place of processes."""

import threading
from dataclasses import dataclass, field

from harness.schedule.outcome import Outcome, Stopped
from harness.schedule.plan import Plan

BUG = ("A:fx_trace:enter", "B:wrapper:enter", "A:fx_trace:exit")


@dataclass
class Program:
    """Shows ``roots`` for every schedule that holds ``bug`` in order; also counts its runs.

    ``odds`` makes the so manieth runs of a schedule miss, to be an intermittent bug.
    """

    bug: tuple = BUG
    roots: tuple = ("CR301",)
    verdict: str = "found"
    missed: frozenset = frozenset()
    impossible: frozenset = frozenset()
    crashing: frozenset = frozenset()
    plans: tuple = ()
    runs: list = field(default_factory=list)
    dropped: list = field(default_factory=list)
    stopped: bool = False
    most_at_once: int = 0

    def __post_init__(self):
        self.lock = threading.Lock()
        self.at_once = 0

    def run(self, schedule, slot):
        if self.stopped:
            raise Stopped
        with self.lock:
            self.runs.append((schedule, slot))
            number = len(self.runs)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.outcome(schedule, number)
        finally:
            with self.lock:
                self.at_once -= 1

    def outcome(self, schedule, number):
        texts = schedule.texts if isinstance(schedule, Plan) else (str(schedule),)
        if texts in self.crashing:
            raise RuntimeError("the report failed")
        if texts in self.impossible:
            return Outcome(kind="impossible", verdict="incomplete", headline="needs a lock")
        if number not in self.missed and is_in(self.bug, texts):
            return Outcome(
                kind="found" if self.verdict == "found" else "incomplete",
                verdict=self.verdict,
                roots=self.roots,
                headline="FOUND it",
                folder=f"run-{number}",
                plans=self.plans,
            )
        return Outcome(kind="clean", verdict="clean", folder=f"run-{number}")

    def stop(self):
        self.stopped = True

    def drop(self, outcome):
        self.dropped.append(outcome.folder)


def is_in(bug, texts):
    """Whether ``bug`` is a subsequence of ``texts``."""
    left = iter(texts)
    return all(text in left for text in bug)
