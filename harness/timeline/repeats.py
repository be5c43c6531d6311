"""Which compiles repeated another thread's, for the same call."""

import itertools

from harness.timeline.contexts import differing
from harness.timeline.history import CodeHistory
from harness.timeline.model import Compile, Uncovered
from harness.timeline.reasons import Guard

_LOOK_BACK = 64
"""Further back than so many compiles nobody waits: each of them has held the lock in between."""


def find_leader(history: CodeHistory, call: Uncovered) -> Compile | None:
    """The compile by another thread that a call, whose own has just ended, waited for and repeated.

    It had not ended when the call began, had ended when the call's own compile began, and left an
    entry that the call would have hit (see ``repeats``).
    """
    compile_ = call.compile
    if compile_ is None:
        return None
    for earlier in itertools.islice(reversed(history.compiles), _LOOK_BACK):
        ended = earlier.t1
        if ended is not None and ended <= call.t:
            break  # one lock is around all compiles, so those before it ended earlier still
        if (
            ended is not None
            and earlier.made_entry
            and earlier.tid != call.tid
            and ended <= compile_.t0
            and repeats(earlier, compile_) is not None
        ):
            return earlier
    return None


def repeats(earlier: Compile, later: Compile) -> str | None:
    """Why ``later`` is known to repeat ``earlier``; None if it is not.

    ``guards``: the two entries' guard texts are equal. ``reason``: torch's reason for the later one
    is that the call passed every guard when it was checked again. ``call``: both were made for the
    same tensors in the same context, and an entry fits the call that it was made for; their guards
    can still differ, since up to torch 2.11 the options of ``torch.compile`` are patched into a
    config that all threads share, where one compile can lose them.
    """
    digests = [entry.digest for entry in (earlier.entry, later.entry) if entry and entry.digest]
    if len(digests) == 2 and digests[0] == digests[1]:
        return "guards"
    for reason in later.reasons:
        if Guard.UNEXPECTED in reason.guards and reason.entry in {earlier.compile_id, None}:
            return "reason"
    if _rejected(earlier, later) or not later.inputs or earlier.inputs != later.inputs:
        return None
    same_context = (
        earlier.context is not None
        and later.context is not None
        and (earlier.context is later.context or not differing(earlier.context, later.context))
    )
    return "call" if same_context else None


def _rejected(earlier: Compile, later: Compile) -> bool:
    """Whether torch says that the earlier one's entry does not fit the later one's call.

    Threads that each define the same closure share its code object, and its cache; what the
    closures captured is among their guards.
    """
    return any(
        reason.entry is not None and reason.entry == earlier.compile_id for reason in later.reasons
    )
