"""A picture of what each thread did when: bars on one scale of time."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.report import LadderStep, ThreadReport

PALETTE = 8
"""How many kinds of step have a colour of their own; the rest share one."""


@dataclass(frozen=True)
class Bar:
    """A step of a thread: where it begins and how wide it is, in hundredths of the whole time."""

    left: float
    width: float
    colour: int
    step: LadderStep


@dataclass(frozen=True)
class Lane:
    """One thread's bars, longest first, so that short ones lie on top."""

    thread: ThreadReport
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Lanes:
    """The picture: its scale in seconds, the kinds of step with their colours, the threads."""

    start_s: float
    end_s: float
    legend: tuple[tuple[str, int], ...]
    lanes: tuple[Lane, ...]


def lanes(threads: Sequence[ThreadReport]) -> Lanes | None:
    """Bars for the threads that did something; None if there is nothing to draw."""
    threads = [thread for thread in threads if thread.ladder]
    steps = [step for thread in threads for step in thread.ladder]
    if not steps:
        return None
    start = min(step.t_s for step in steps)
    end = max(step.t_s + (step.duration_s or 0.0) for step in steps)
    scale = 100.0 / (end - start) if end > start else 0.0
    kinds = list(dict.fromkeys(step.what for step in sorted(steps, key=lambda step: step.t_s)))
    colours = {kind: min(number, PALETTE) for number, kind in enumerate(kinds)}

    def bar(step: LadderStep) -> Bar:
        length = end - step.t_s if step.open else step.duration_s or 0.0
        return Bar((step.t_s - start) * scale, length * scale, colours[step.what], step)

    return Lanes(
        start,
        end,
        tuple(colours.items()),
        tuple(
            Lane(thread, tuple(sorted(map(bar, thread.ladder), key=lambda bar: -bar.width)))
            for thread in threads
        ),
    )
