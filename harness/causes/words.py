"""Words that causes share: references to threads and code objects, subjects of sentences."""

from collections.abc import Iterable, Sequence

from harness import phrases
from harness.events.values import Code, Frame
from harness.statements import Certainty, Stack, ThreadRef
from harness.timeline import lives
from harness.timeline.history import CodeHistory
from harness.timeline.timeline import Timeline

NAMES_SHOWN = 4

count = phrases.count
times = phrases.times


def ref(timeline: Timeline, tid: int) -> ThreadRef:
    """A reference to a thread."""
    return ThreadRef(
        tid=lives.native(tid), name=timeline.name(tid), pid=timeline.pid, life=lives.life(tid)
    )


def refs(timeline: Timeline, tids: Iterable[int]) -> tuple[ThreadRef, ...]:
    """References to threads, each once, in the order given."""
    return tuple(ref(timeline, tid) for tid in dict.fromkeys(tids))


def stack(timeline: Timeline, tid: int, title: str, frames: Sequence[Frame], seq: int) -> Stack:
    """A stack of a thread for showing beside another's."""
    evidence = (seq,) if seq else ()
    return Stack(thread=ref(timeline, tid), title=title, frames=tuple(frames), evidence=evidence)


def unseen(timeline: Timeline, until: int | None = None, *, sure: bool = True) -> Certainty:
    """How certain it is that something which was not recorded did not happen.

    Args:
        timeline: the recording.
        until: the seq up to which it did not; None: at all.
        sure: whether the rest of what is stated was observed.
    """
    return "observed" if sure and timeline.saw_all(until) else "inferred"


def listing(items: Iterable[str], limit: int = NAMES_SHOWN, last: str = "and") -> str:
    """``phrases.listing`` of as many as a sentence holds."""
    return phrases.listing(items, limit, last)


def names(timeline: Timeline, tids: Iterable[int], last: str = "and") -> str:
    """The threads' names, a few of them."""
    return listing((f"`{timeline.name(tid)}`" for tid in tids), last=last)


def codes(found: Iterable[Code]) -> str:
    """The code objects' names, a few of them."""
    return listing(f"`{code.name}`" for code in found)


def subject(timeline: Timeline, tids: Iterable[int], histories: Iterable[CodeHistory]) -> str:
    """Who did it, for the start of a sentence: ``All 3 drafter threads``.

    Counted against the threads other than the main one that were seen at any of ``histories``.
    Autograd's threads work on behalf of the others, so they are named only where no other did it.
    """
    doers = list(dict.fromkeys(tids))
    served = timeline.autograd
    doers = [tid for tid in doers if tid not in served] or doers
    seen = {tid for history in histories for tid in history.sightings} - served
    others = {tid for tid in seen | set(doers) if tid != timeline.main_tid}
    if len(doers) == 1:
        whose = "Autograd's thread" if doers[0] in served else "Thread"
        return f"{whose} `{timeline.name(doers[0])}`"
    if timeline.main_tid in doers:
        return f"{len(doers)} threads ({names(timeline, doers)})"
    noun = f"{_common(timeline, others)}threads"
    if set(doers) == others:
        return f"All {len(doers)} {noun}" if len(doers) > 2 else f"Both {noun}"
    return f"{len(doers)} of {len(others)} {noun}"


def object_(timeline: Timeline, tids: Iterable[int]) -> str:
    """The same within a sentence: ``thread `a```, ``threads `a` and `b```."""
    doers = list(dict.fromkeys(tids))
    return f"thread{'s' if len(doers) > 1 else ''} {names(timeline, doers)}"


def begin(text: str) -> str:
    """The text as a sentence's beginning: its first letter a capital, names left alone."""
    return text[:1].upper() + text[1:]


def seqs(*groups: Iterable[int], limit: int = 12) -> tuple[int, ...]:
    """Sequence numbers for a statement's evidence, each once, in order, at most ``limit``.

    Zero stands for an event that was not recorded.
    """
    found = sorted({seq for group in groups for seq in group if seq})
    return tuple(found[:limit])


def _common(timeline: Timeline, tids: Iterable[int]) -> str:
    """What the threads' names have in common, as an adjective: ``drafter ``."""
    heads = {timeline.name(tid).split(" (")[0].rstrip("0123456789_-:. ") for tid in tids}
    head = heads.pop() if len(heads) == 1 else ""
    return f"{head} " if head and head.lower() != "thread" else ""
