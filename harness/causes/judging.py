"""Why calls were not covered, as causes ask for it. How it is decided: ``timeline.judging``."""

from collections.abc import Iterable

from harness.timeline.judging import Judgement, seqs_of
from harness.timeline.model import Uncovered
from harness.timeline.timeline import Timeline

__all__ = ["Judgement", "judgement_of", "judgements", "seqs_of"]


def judgements(timeline: Timeline) -> Iterable[Judgement]:
    """Every uncovered call of the program's code that had entries to be checked against."""
    return timeline.judgements().values()


def judgement_of(timeline: Timeline, call: Uncovered) -> Judgement | None:
    """The judgement of one call; None if it met no entry or nothing is known of why."""
    return timeline.judgements().get(id(call))
